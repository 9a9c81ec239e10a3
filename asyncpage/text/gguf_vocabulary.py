"""The vocabulary of a GGUF file, from its metadata.

`load_vocabulary` calls it.

INVARIANT: the tokenizer model and the pre-tokeniser are taken by their names in the file; other names are refused.

Source: the GGUF specification's `tokenizer.ggml` keys; what a key's absence means follows llama.cpp, whose
converter writes these files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.gguf import GGUFFile
from asyncpage.text.gguf_keys import PREFIX, TokenizerKeys
from asyncpage.text.pieces import WHOLE, Splitting
from asyncpage.text.pre_tokenizers import PRE_TOKENIZERS
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.vocabulary import AddedToken, Vocabulary

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # of the types in tokenizer.ggml.token_type, those found in raw text
MERGED = (1, USER_DEFINED, 5)  # those that characters are joined to: ordinary and unused ones too

MAX_PIECE = 512
"""Characters of a token, where all ways are looked at to make it of two others; the longest known have 48."""

# Ends of a turn that older converters left out of the keys: a chat would run on without them.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
NO_TURN_END = "<|return|>"  # where there is this one, "<|end|>" ends a part of a turn

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
    keys = TokenizerKeys(source, metadata)
    match keys.text("model"):
        case "gpt2":
            return _byte_level(source, metadata, keys)
        case "llama":
            return _sentence_piece(source, metadata, keys)
        case other:
            known = "gpt2 (byte-level BPE), llama (SentencePiece)"
            raise ModelError(f"{source}: tokenizer model {other!r} is not supported; supported are {known}")


def _byte_level(source: str, metadata: Mapping[str, Any], keys: TokenizerKeys) -> Vocabulary:
    name = keys.text("pre")
    kind = PRE_TOKENIZERS.get(name)
    if kind is None:
        known = ", ".join(PRE_TOKENIZERS)
        raise ModelError(f"{source}: pre-tokenizer {name!r} is not supported; supported are {known}")
    tokens = keys.texts("tokens")
    types = keys.token_types(len(tokens))
    plain = Vocabulary(
        source=source,
        tokens=tokens,
        merges=partial(_pairs, source, keys.texts("merges")),
        added=_added(tokens, types),
        splitting=Splitting(kind.pattern, keys.flag("add_space_prefix", False), kind.earlier),
        is_nfc=kind.is_nfc,
        ignore_merges=kind.ignores_merges,
    )
    return _with_roles(plain, metadata, keys, begins_with_bos=kind.begins_with_bos, roles={})


def _sentence_piece(source: str, metadata: Mapping[str, Any], keys: TokenizerKeys) -> Vocabulary:
    for key, known in (("pre", ("default", "llama-spm")), ("remove_extra_whitespaces", (False,))):
        found = metadata.get(PREFIX + key, known[0])
        if found not in known:
            raise ModelError(f"{source}: {PREFIX}{key} {found!r} is not supported for llama; supported is {known[0]!r}")
    if metadata.get(PREFIX + "precompiled_charsmap"):
        raise ModelError(f"{source}: {PREFIX}precompiled_charsmap is not supported for llama; supported is none")
    tokens = keys.texts("tokens")
    types = keys.token_types(len(tokens))
    scores = keys.scores(len(tokens))
    longest = max(tokens, key=len, default="")
    if len(longest) > MAX_PIECE:
        reason = f"has a token of {len(longest)} characters, at most {MAX_PIECE} are read"
        raise FormatError(source, f"{PREFIX}tokens", reason)
    has_prefix = keys.flag("add_space_prefix", True)
    added = _added(tokens, types)
    if metadata.get("general.architecture") == "phi3":
        # The file has no key for it: these swallow the line that templates end behind them.
        keeps = ("<unk>", "<s>", "<|endoftext|>")
        added = tuple(replace(token, rstrip=token.text not in keeps) for token in added)
    rules = SentencePieceRules(
        prefix="always" if has_prefix else "none",
        drops_first_space=has_prefix,
        scores=[score if kind in MERGED else None for score, kind in zip(scores, types, strict=True)],
    )
    plain = Vocabulary(
        source=source,
        tokens=tokens,
        merges=lambda: iter(()),
        added=added,
        splitting=Splitting(WHOLE),
        fuse_unknown=True,
        sentence_pieces=rules,
    )
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    whole = _with_roles(plain, metadata, keys, begins_with_bos=True, roles=roles)
    return replace(whole, unknown_id=keys.token_id("unknown_token_id", len(tokens), 0))


def _added(tokens: list[str], types: list[int]) -> tuple[AddedToken, ...]:
    return tuple(
        AddedToken(id, tokens[id], kind != USER_DEFINED)
        for id, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and tokens[id]
    )


def _with_roles(
    plain: Vocabulary,
    metadata: Mapping[str, Any],
    keys: TokenizerKeys,
    *,
    begins_with_bos: bool,
    roles: Mapping[str, int],
) -> Vocabulary:
    """What a vocabulary's tokens are for. `roles`: ids of the keys that may be absent."""
    tokens = plain.tokens
    specials = {token.text: token.id for token in plain.added if token.is_special}

    def role(key: str) -> int | None:
        return keys.token_id(key, len(tokens), roles.get(key))

    bos_id, eos_id = role("bos_token_id"), role("eos_token_id")
    ends = {eos_id, role("eot_token_id"), role("eom_token_id"), *(specials.get(text) for text in TURN_ENDS)}
    if NO_TURN_END in specials:
        ends.discard(specials.get("<|end|>"))
    named = {"bos_token": bos_id, "eos_token": eos_id}
    named |= {"unk_token": role("unknown_token_id"), "pad_token": role("padding_token_id")}
    has_prefix = keys.flag("add_bos_token", begins_with_bos) and bos_id is not None
    has_suffix = keys.flag("add_eos_token", False) and eos_id is not None
    return replace(
        plain,
        prefix_ids=(bos_id,) if has_prefix and bos_id is not None else (),
        suffix_ids=(eos_id,) if has_suffix and eos_id is not None else (),
        bos_id=bos_id,
        end_ids=tuple(sorted(id for id in ends if id is not None)),
        named={name: tokens[id] for name, id in named.items() if id is not None},
        templates=dict(_templates(metadata)),
    )


def _pairs(source: str, merges: list[str]) -> Iterator[tuple[str, str]]:
    for number, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not left or not space or not right or " " in right:
            raise FormatError(
                source, f"{PREFIX}merges[{number}]", f"found {merge!r}, two tokens and a space are needed"
            )
        yield left, right


def _templates(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if key == _TEMPLATE_KEY and isinstance(value, str):
            yield "default", value
        elif key.startswith(_TEMPLATE_KEY + ".") and isinstance(value, str):
            yield key.removeprefix(_TEMPLATE_KEY + "."), value
