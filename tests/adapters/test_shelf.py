"""Adapters by name: loaded, replaced and unloaded, and only from where the operator allows."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from asyncpage.adapters import shelf as module
from asyncpage.adapters.shelf import AdapterShelf
from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, RequestError, UsageError
from asyncpage.messages import RequestOptions
from asyncpage.testing.toy_runner import toy_handshake
from tests.adapters.adapter_folder import LINEARS, tensors, write

HANDSHAKE = replace(toy_handshake(), linears=tuple(LINEARS.values()))


def new_shelf(**settings: Any) -> AdapterShelf:
    return AdapterShelf(EngineConfig(**{"enable_lora": True, **settings}), ("base", "alias"), HANDSHAKE)


async def test_a_loaded_adapter_is_found_by_its_name_until_it_is_unloaded(tmp_path: Path) -> None:
    shelf = new_shelf()
    adapter = await shelf.load("poet", str(write(tmp_path / "a")))
    assert (shelf.names, shelf.find("poet"), shelf.find("base"), shelf.find("alias")) == (
        ("poet",), adapter, None, None,
    )  # fmt: skip
    assert shelf.chosen("poet", RequestOptions(priority=2)) == RequestOptions(priority=2, lora=adapter)
    assert shelf.chosen(None, RequestOptions()) == RequestOptions()
    shelf.unload("poet")
    assert shelf.names == ()
    for ask in (shelf.find, shelf.unload):
        with pytest.raises(RequestError) as refusal:
            ask("poet")
        assert refusal.value.failure.status == 404


async def test_another_load_under_a_name_is_another_adapter_and_equal_files_are_the_same(tmp_path: Path) -> None:
    shelf = new_shelf()
    folder = write(tmp_path / "a")
    first = await shelf.load("poet", str(folder))
    assert await shelf.load("again", str(folder)) == first
    write(folder, tensors(seed=1))
    second = await shelf.load("poet", str(folder))
    assert second.identity != first.identity
    assert shelf.find("poet") == second
    assert shelf.find("again") == first  # its requests find out that the files have changed


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-a", "ä", "x" * 129, "base", "alias"])
async def test_a_name_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refusal:
        await new_shelf().load(name, str(write(tmp_path / "a")))
    assert (refusal.value.failure.status, refusal.value.failure.param) == (400, "lora_name")


async def test_nothing_is_loaded_where_adapters_are_off(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--enable-lora"):
        await new_shelf(enable_lora=False).load("poet", str(write(tmp_path / "a")))


async def test_a_wrong_adapter_leaves_the_one_that_had_the_name(tmp_path: Path) -> None:
    shelf = new_shelf()
    adapter = await shelf.load("poet", str(write(tmp_path / "a")))
    with pytest.raises(RequestError, match="DoRA") as refusal:
        await shelf.load("poet", str(write(tmp_path / "b", use_dora=True)))
    assert (refusal.value.failure.status, refusal.value.failure.param) == (400, "lora_path")
    assert shelf.find("poet") == adapter


async def test_names_and_loads_that_wait_are_bounded(tmp_path: Path) -> None:
    shelf = new_shelf()
    folder = str(write(tmp_path / "a"))
    loads = [shelf.load(f"a{number}", folder) for number in range(module.MOST_WAITING + 2)]
    results = await asyncio.gather(*loads, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RequestError)]
    assert [error.failure.status for error in refused] == [429, 429]
    with patch.object(module, "MOST_ADAPTERS", len(shelf.names)):
        with pytest.raises(RequestError) as full:
            await shelf.load("more", folder)
        assert full.value.failure.status == 429
        await shelf.load("a0", folder)  # one that is there takes no more room


async def test_adapters_of_the_settings_are_loaded_in_their_order_or_stop_the_start(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a"), write(tmp_path / "b", bias="all")
    shelf = new_shelf(lora=(f"x={good}", f"y={good}"))
    await shelf.load_configured()
    assert shelf.names == ("x", "y")
    with pytest.raises(ModelError, match=r"--lora x=.*bias"):
        await new_shelf(lora=(f"x={bad}",)).load_configured()
    for taken in ((f"x={good}", f"x={good}"), (f"base={good}",)):
        with pytest.raises(UsageError, match="is taken"):
            await new_shelf(lora=taken).load_configured()


async def test_only_what_lies_inside_of_an_allowed_folder_is_loaded(tmp_path: Path) -> None:
    allowed, other, outside = tmp_path / "allowed", tmp_path / "other", tmp_path / "outside"
    write(allowed / "good")
    write(other / "good too")
    write(outside)
    os.symlink(outside, allowed / "link")
    os.symlink(allowed / "loop", allowed / "loop")
    shelf = new_shelf(lora_dir=(str(allowed), str(other)))
    shelf.check_open()
    for path in ("good", str(allowed / "good"), "./good/../good", "good too"):
        await shelf.load_allowed("poet", path)
    for path in ("link", "../outside", str(outside), "loop", "absent", "\0", "x" * 5000, str(tmp_path)):
        with pytest.raises(RequestError, match="--lora-dir") as refusal:
            await shelf.load_allowed("poet", path)
        assert refusal.value.failure.status == 400


async def test_an_error_over_the_api_names_the_path_as_the_client_did(tmp_path: Path) -> None:
    write(tmp_path / "bad", use_dora=True)
    shelf = new_shelf(lora_dir=(str(tmp_path),))
    with pytest.raises(RequestError) as refusal:
        await shelf.load_allowed("poet", "bad")
    assert refusal.value.failure.message.startswith("bad/adapter_config.json: use_dora")
    assert str(tmp_path) not in refusal.value.failure.message


def test_without_a_folder_to_load_from_nothing_is_loaded_over_the_api() -> None:
    with pytest.raises(RequestError, match="--lora-dir") as refusal:
        new_shelf().check_open()
    assert refusal.value.failure.status == 403
