"""The vocabulary of a GGUF file, from its metadata.

`load_vocabulary` calls it.

INVARIANT: the tokenizer model and the pre-tokeniser are taken by their names in the file; other names are refused.

Source: the GGUF specification's `tokenizer.ggml` keys; what a key's absence means follows llama.cpp, whose
converter writes these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.text import pieces
from asyncpage.text.vocabulary import AddedToken, Vocabulary

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # of the types in tokenizer.ggml.token_type, those found in raw text

# Ends of a turn that older converters left out of the keys: a chat would run on without them.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>")

_KEY = "tokenizer.ggml."
_TEMPLATE_KEY = "tokenizer.chat_template"


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Errors: `ModelError` for another kind of tokenizer, `FormatError` when a key is malformed."""
    file = GGUFFile(path)
    try:
        return vocabulary_of_metadata(str(path), file.metadata)
    finally:
        file.close()


def vocabulary_of_metadata(source: str, metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that these GGUF keys describe. Errors: as `read_gguf_vocabulary`."""
    found = _Keys(source, metadata)
    model = found.text("model")
    if model != "gpt2":
        raise ModelError(f"{source}: tokenizer model {model!r} is not supported; supported is gpt2 (byte-level BPE)")
    name = found.text("pre")
    pattern = pieces.NAMES.get(name)
    if pattern is None:
        known = ", ".join(pieces.NAMES)
        raise ModelError(f"{source}: pre-tokenizer {name!r} is not supported; supported are {known}")
    tokens = found.texts("tokens")
    is_llama3 = pattern == pieces.LLAMA3
    added = tuple(
        AddedToken(id, tokens[id], kind != USER_DEFINED)
        for id, kind in enumerate(found.token_types(len(tokens)))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and tokens[id]
    )
    specials = {token.text: token.id for token in added if token.is_special}
    bos_id = found.token_id("bos_token_id", len(tokens))
    ends = [found.token_id(key, len(tokens)) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    end_ids = {id for id in ends if id is not None} | {specials[text] for text in TURN_ENDS if text in specials}
    named = {"bos_token": bos_id, "eos_token": ends[0]}
    for role, key in (("unk_token", "unknown_token_id"), ("pad_token", "padding_token_id")):
        named[role] = found.token_id(key, len(tokens))
    has_prefix = found.flag("add_bos_token", is_llama3) and bos_id is not None
    has_suffix = found.flag("add_eos_token", False) and ends[0] is not None
    return Vocabulary(
        source=source,
        tokens=tokens,
        merges=partial(_pairs, source, found.texts("merges")),
        added=added,
        splitting=pieces.Splitting(pattern, found.flag("add_space_prefix", False)),
        # The file has no key for it; every tokenizer of this family asks for NFC.
        is_nfc=pattern == pieces.QWEN2,
        ignore_merges=is_llama3,
        prefix_ids=(bos_id,) if has_prefix and bos_id is not None else (),
        suffix_ids=(ends[0],) if has_suffix and ends[0] is not None else (),
        bos_id=bos_id,
        end_ids=tuple(sorted(end_ids)),
        named={role: tokens[id] for role, id in named.items() if id is not None},
        templates=dict(_templates(metadata)),
    )


def _pairs(source: str, merges: list[str]) -> Iterator[tuple[str, str]]:
    for number, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not left or not space or not right or " " in right:
            raise FormatError(source, f"{_KEY}merges[{number}]", f"found {merge!r}, two tokens and a space are needed")
        yield left, right


def _templates(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if key == _TEMPLATE_KEY and isinstance(value, str):
            yield "default", value
        elif key.startswith(_TEMPLATE_KEY + ".") and isinstance(value, str):
            yield key.removeprefix(_TEMPLATE_KEY + "."), value


class _Keys:
    """The `tokenizer.ggml` keys, each checked for its type."""

    def __init__(self, source: str, metadata: Mapping[str, Any]) -> None:
        self._source = source
        self._metadata = metadata

    def text(self, key: str) -> str:
        value = self._metadata.get(_KEY + key)
        if value is None:
            raise ModelError(f"{self._source}: has no {_KEY}{key}, so its tokenizer is of an unknown kind")
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._metadata.get(_KEY + key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(_KEY + key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def token_id(self, key: str, size: int) -> int | None:
        value = self._metadata.get(_KEY + key)
        if value is not None and (not isinstance(value, int) or not 0 <= value < size):
            raise self._wrong(key, value, f"a token id below {size}")
        return value

    def token_types(self, size: int) -> list[int]:
        value = self._metadata.get(_KEY + "token_type")
        if not isinstance(value, list) or len(value) != size or not all(isinstance(item, int) for item in value):
            raise self._wrong("token_type", value, f"a list of {size} integers, one a token")
        return value

    def _wrong(self, key: str, value: object, needed: str) -> FormatError:
        found = repr(value) if not isinstance(value, list) else f"a list of {len(value)}"
        return FormatError(self._source, _KEY + key, f"found {found}, {needed} is needed")
