"""Which words are names on the hub, and which are not."""

from __future__ import annotations

import pytest

from asyncpage.hub.name import HubName, parse_hub_name


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/name@v1.0", HubName("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubName("org/name", "refs/pr/1")),
        ("org/name:Q4_K_M", HubName("org/name", None, "Q4_K_M")),
        ("org/name@main:BF16/a-b.gguf", HubName("org/name", "main", "BF16/a-b.gguf")),
    ],
)
def test_a_name_is_taken_apart_and_written_as_it_was(word: str, expected: HubName) -> None:
    assert parse_hub_name(word) == expected
    assert str(expected) == word


@pytest.mark.parametrize(
    "word",
    [
        "", "name", "/name", "org/", "a/b/c", "./name", "../name", "~/name", "folder/model.gguf", "org/a--b",
        "org/name@", "org/name:", "org/name@../x", "org/name@a/../b", "org/name:../x.gguf", "org/name:/x.gguf",
        "org/na me", "org/name\n", "org/näme", "org/.name", "org/..", "org/name@a b", "org/" + "x" * 200,
    ],
)  # fmt: skip
def test_what_may_be_a_path_or_leads_elsewhere_is_no_name(word: str) -> None:
    assert parse_hub_name(word) is None
