"""Adapters: loaded whole or refused with the reason, applied by their closed form, and never mixed up."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import Any

from tests.cases import adapters
from tests.cases.client import COMPLETIONS
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Run, Suite, covers

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
PROMPT = [7 + (place * place) % 480 for place in range(48)]


def with_adapter(oracle: Oracle, seed: int) -> Oracle:
    return oracle.with_weights(adapters.merged(oracle.weights, adapters.tensors(seed)))


async def _listed(run: Run) -> set[str]:
    return {model["id"] for model in (await run.client.get("/v1/models")).json["data"]}


@covers("LOR-01")
async def test_an_adapter_is_loaded_whole_or_refused_with_the_reason(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    folder = adapters.write_all(suite.pool.folder / "adapters")
    async with suite.on(tiny, lora_dir=str(folder), max_loras=1) as run:
        run.client.names = run.client.names.with_value("$FIX", str(folder))
        base = [{"prompt": f"base {number}", "max_tokens": 200, "temperature": 0} for number in range(8)]
        solo = [(await run.client.complete(**fields)).text() for fields in base]
        streams = asyncio.gather(*(run.client.complete(**fields, stream=True) for fields in base))
        *bad, good, unknown, absent, taken = await run.table()
        assert [answer.text() for answer in await streams] == solo
        for answer in bad:
            assert 400 <= answer.status < 500
            assert answer.error["message"]
        assert good.status == 200
        assert unknown.status == 404
        assert unknown.error["code"] == "model_not_found"
        assert absent.status in (400, 404)
        assert taken.status == 400
        assert await _listed(run) == {"tiny", "ok"}
        answer = await run.client.post(COMPLETIONS, {"model": "ok", "prompt": PROMPT, **GREEDY})
        with_adapter(oracle, 1).check_greedy(PROMPT, answer.token_ids())
        long = {"model": "ok", "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "stream": True}
        running = asyncio.ensure_future(run.client.post(COMPLETIONS, long))
        shutil.rmtree(folder / "lora_ok")  # the files are not needed any more
        await run.client.post(UNLOAD, {"lora_name": "ok"})
        assert (await running).status in (200, 404)
        assert (await run.client.post(COMPLETIONS, {"model": "ok", "prompt": PROMPT, **GREEDY})).status == 404
        for cycle in range(500 if suite.thorough else 20):
            name = "ab"[cycle % 2]
            load = {"lora_name": name, "lora_path": str(folder / f"lora_{name}")}
            assert (await run.client.post(LOAD, load)).status == 200
            answer = await run.client.post(COMPLETIONS, {"model": name, "prompt": PROMPT, **GREEDY})
            assert answer.status == 200
            assert (await run.client.post(UNLOAD, {"lora_name": name})).status == 200


@covers("LOR-03")
async def test_base_and_adapters_never_share_what_differs(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    folder = suite.pool.folder / "adapters-mixed"
    for index, name in enumerate("abcd"):
        adapters.write_adapter(folder / f"lora_{name}", adapters.tensors(10 + index))
    async with suite.on(tiny, lora_dir=str(folder)) as run:
        oracles = {"tiny": oracle} | {name: with_adapter(oracle, 10 + index) for index, name in enumerate("abcd")}
        for name in "abcd":
            load = {"lora_name": name, "lora_path": str(folder / f"lora_{name}")}
            assert (await run.client.post(LOAD, load)).status == 200
        for name, own in oracles.items():
            first, second = [
                await run.client.post(COMPLETIONS, {"model": name, "prompt": PROMPT, **GREEDY}) for _ in range(2)
            ]
            assert first.cached_tokens() == 0
            assert second.cached_tokens() > 0
            own.check_greedy(PROMPT, first.token_ids())
        randomness = random.Random(5)
        for _ in range(10 if suite.thorough else 2):
            names = [randomness.choice(list(oracles)) for _ in range(64)]
            fields: list[dict[str, Any]] = [{"model": name, "prompt": PROMPT, "n": 2, **GREEDY} for name in names]
            answers = await asyncio.gather(*(run.client.post(COMPLETIONS, one) for one in fields))
            for name, answer in zip(names, answers, strict=True):
                for index in range(2):
                    oracles[name].check_greedy(PROMPT, answer.token_ids(index))
