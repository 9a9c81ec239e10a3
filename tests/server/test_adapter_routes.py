"""Adapters over HTTP: loaded and unloaded where the operator allows it, and a model to every route that takes one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncpage.adapters.shelf import AdapterShelf
from asyncpage.config import EngineConfig
from asyncpage.testing.toy_runner import toy_handshake
from tests.adapters.adapter_folder import LINEARS, write

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
HANDSHAKE = replace(toy_handshake(), linears=tuple(LINEARS.values()))


@pytest.fixture
def shelf(engine: Any, tmp_path: Path) -> AdapterShelf:
    """The engine's own, which may load from a folder that holds "poet" and "bad"."""
    write(tmp_path / "poet")
    write(tmp_path / "bad", use_dora=True)
    config = EngineConfig(lora_dir=(str(tmp_path),))
    engine.adapters = AdapterShelf(config, engine.model_names, HANDSHAKE)
    return engine.adapters


async def test_an_adapter_is_listed_with_its_parent_from_its_load_to_its_unload(shelf: AdapterShelf, site: Any) -> None:
    status, card = await site.post(LOAD, {"lora_name": "sql/one", "lora_path": "poet"})
    assert (status, card["id"], card["root"], card["parent"]) == (200, "sql/one", "sql/one", "echo")
    listed = json.loads((await site.get("/v1/models")).text)["data"]
    assert [model["id"] for model in listed] == ["echo", "org/alias", "sql/one"]
    assert json.loads((await site.get("/v1/models/sql/one")).text) == card
    gone = await site.post(UNLOAD, {"lora_name": "sql/one"})
    assert gone == (200, {"id": "sql/one", "object": "model", "deleted": True})
    assert (await site.get("/v1/models/sql/one")).status == 404


MESSAGES = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/embeddings": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
}
RUNNING = list(BODIES)[:5]


@pytest.mark.parametrize("path", BODIES)
async def test_every_route_takes_an_adapter_as_its_model_and_no_other_name(
    path: str, shelf: AdapterShelf, site: Any
) -> None:
    adapter = (await site.post(LOAD, {"lora_name": "poet", "lora_path": "poet"})) and shelf.find("poet")
    for model, lora in (("poet", adapter), ("echo", None)):
        status, body = await site.post(path, {**BODIES[path], "model": model})
        assert status == 200, body
        if path in RUNNING:
            assert site.engine.submitted[-1][2].lora == lora
            assert body["model"] == model
    await site.post(UNLOAD, {"lora_name": "poet"})
    assert (await site.post(path, {**BODIES[path], "model": "poet"}))[0] == 404


async def test_answers_of_an_adapter_have_a_fingerprint_of_their_own(shelf: AdapterShelf, site: Any) -> None:
    await site.post(LOAD, {"lora_name": "poet", "lora_path": "poet"})
    own, base = [(await site.complete(prompt="hi", model=model))["system_fingerprint"] for model in ("poet", "echo")]
    assert own.startswith(f"{base}_")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (LOAD, {"lora_path": "poet"}, 400, "lora_name"),
        (LOAD, {"lora_name": "x"}, 400, "lora_path"),
        (LOAD, {"lora_name": 3, "lora_path": "poet"}, 400, "lora_name"),
        (LOAD, {"lora_name": "x" * 200, "lora_path": "poet"}, 400, "lora_name"),
        (LOAD, {"lora_name": "echo", "lora_path": "poet"}, 400, "lora_name"),
        (LOAD, {"lora_name": "x", "lora_path": "absent"}, 400, "lora_path"),
        (LOAD, {"lora_name": "x", "lora_path": "/etc"}, 400, "lora_path"),
        (LOAD, {"lora_name": "x", "lora_path": "bad"}, 400, "lora_path"),
        (UNLOAD, {"lora_name": "x"}, 404, "lora_name"),
        (UNLOAD, {}, 400, "lora_name"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_says_why_and_changes_nothing(
    path: str, body: dict[str, Any], status: int, param: str, shelf: AdapterShelf, site: Any, tmp_path: Path
) -> None:
    found, answer = await site.post(path, body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert str(tmp_path) not in answer["error"]["message"]
    assert shelf.names == ()


async def test_both_routes_are_off_unless_the_operator_names_a_folder(site: Any) -> None:
    for path in (LOAD, UNLOAD):
        status, answer = await site.post(path, {"lora_name": "x", "lora_path": "y"})
        assert (status, answer["error"]["code"]) == (403, "adapters_off")
        assert "--lora-dir" in answer["error"]["message"]
