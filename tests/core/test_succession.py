"""Who may take over from a lost executor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from asyncpage.core.succession import difference, load_for_successors
from asyncpage.messages import Handshake, LayerGroup, Load

FIRST = Handshake(
    fingerprint="abc",
    pid=1,
    rank=0,
    blocks=64,
    block_size=16,
    groups=(LayerGroup("full", 0, 2),),
    max_model_len=512,
    vocab_size=997,
    dtype="float32",
    kv_dtype="float32",
    device="cpu",
    attention_backend="reference",
    load_ms=1,
    kv_bytes=0,
)


def test_a_successor_may_differ_in_what_no_request_sees() -> None:
    assert difference(FIRST, replace(FIRST, pid=2, load_ms=900)) == ""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"fingerprint": "xyz"}, "fingerprint was abc, is xyz"),
        ({"blocks": 63}, "blocks was 64, is 63"),
        ({"block_size": 32}, "block_size was 16, is 32"),
        ({"groups": ()}, "groups was "),
    ],
)
def test_another_model_or_layout_is_named(change: dict[str, Any], text: str) -> None:
    assert difference(FIRST, replace(FIRST, **change)).startswith(text)


def test_successors_are_told_the_number_of_blocks_instead_of_an_amount_of_memory() -> None:
    asked = Load({"num_kv_blocks": None, "kv_cache_bytes": 1 << 30, "dtype": "auto"})
    told = load_for_successors(asked, FIRST).settings
    assert told == {"num_kv_blocks": 64, "kv_cache_bytes": None, "dtype": "auto"}
    assert load_for_successors(Load({}), FIRST) == Load({})
