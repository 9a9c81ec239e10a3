"""The vocabulary of a model folder: `tokenizer.json` and the configuration files beside it.

`load_vocabulary` calls it. `tokenizer_json` reads the tokenizer's own parts; here they are joined with what the
other files say about ends, beginnings and chat templates.

INVARIANT: a special token that only `tokenizer_config.json` names is one of the added tokens, as if both files
named it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.formats.json_text import read_json_object
from asyncpage.text.bert_vocabulary import BERT_NAME, read_bert_vocabulary
from asyncpage.text.generation import GENERATION_NAME, end_token_ids, read_optional_json
from asyncpage.text.tokenizer_json import TokenizerJson
from asyncpage.text.vocabulary import AddedToken, Vocabulary

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"
MODEL_CONFIG_NAME = "config.json"
MAX_TOKENIZER_BYTES = 128 * 1024 * 1024  # the largest known have 34 million
MAX_TOKENIZER_CONTAINERS = 4_000_000  # the largest known have a list for each of 500 thousand merges
MAX_TEMPLATE_BYTES = 1024 * 1024  # the largest known have some ten thousand

ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Errors: `ModelError` for a part of a kind that is not supported, `FormatError` when a file is malformed."""
    file = folder / TOKENIZER_NAME
    if not file.exists():
        if (folder / BERT_NAME).exists():
            return read_bert_vocabulary(folder)
        raise ModelError(f"{folder}: has no {TOKENIZER_NAME}; the tokenizer is read from that file")
    parts = TokenizerJson(str(file), read_json_object(file, MAX_TOKENIZER_BYTES, MAX_TOKENIZER_CONTAINERS))
    config_file = folder / CONFIG_NAME
    config = read_optional_json(config_file)
    named = dict(_named_tokens(config, config_file))
    ids = parts.ids()
    specials = [text for text in (*named.values(), *_additional_tokens(config)) if text in ids]
    added = _with_specials(parts.added, specials, ids)
    size = 1 + max((*parts.vocab.values(), *(token.id for token in added)), default=-1)
    tokens = [""] * size
    for text, id in parts.vocab.items():
        tokens[id] = text
    for token in added:
        tokens[token.id] = token.text
    bos_id, eos_id = ids.get(named.get("bos_token", "")), ids.get(named.get("eos_token", ""))
    prefix_ids, suffix_ids = parts.around()
    if "add_bos_token" in config or "add_eos_token" in config:  # then these decide, not the post-processor
        prefix_ids = (bos_id,) if config.get("add_bos_token") and bos_id is not None else ()
        suffix_ids = (eos_id,) if config.get("add_eos_token") and eos_id is not None else ()
    end_ids = set(_end_ids(folder))
    if eos_id is not None:
        end_ids.add(eos_id)
    rules = parts.word_pieces
    if rules is not None and config.get("do_lower_case", rules.lowers) != rules.lowers:
        raise ModelError(f"{config_file}: do_lower_case is {config['do_lower_case']!r}, and {file} says otherwise")
    spaces = parts.sentence_pieces
    if spaces is not None and config.get("add_prefix_space") is (spaces.prefix == "none"):
        raise ModelError(f"{config_file}: add_prefix_space is {config['add_prefix_space']}, and {file} says otherwise")
    return Vocabulary(
        source=str(file),
        tokens=tokens,
        merges=parts.merges,
        added=added,
        splitting=parts.splitting(),
        is_nfc=parts.is_nfc(),
        ignore_merges=parts.ignore_merges,
        unknown_id=parts.unknown_id,
        fuse_unknown=parts.fuse_unknown,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        bos_id=bos_id,
        end_ids=tuple(sorted(end_ids)),
        named=named,
        templates=_templates(folder, config, config_file),
        word_pieces=rules,
        sentence_pieces=spaces,
        outside=frozenset(token.id for token in added if parts.vocab.get(token.text) != token.id),
    )


def _named_tokens(config: Mapping[str, Any], file: Path) -> Iterator[tuple[str, str]]:
    for role in ROLES:
        value = config.get(role)
        if isinstance(value, dict):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise FormatError(str(file), role, f"found {value!r}, a token's text is needed")
        yield role, value


def _additional_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    for key in ("additional_special_tokens", "extra_special_tokens"):
        found = config.get(key)
        for value in found if isinstance(found, list) else ():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                yield text


def _with_specials(
    added: tuple[AddedToken, ...], specials: list[str], ids: Mapping[str, int]
) -> tuple[AddedToken, ...]:
    by_text = {token.text: token for token in added}
    for text in specials:
        known = by_text.get(text)
        by_text[text] = AddedToken(ids[text], text) if known is None else replace(known, is_special=True)
    return tuple(by_text.values())


def _end_ids(folder: Path) -> tuple[int, ...]:
    """The generation config's word on the end of an answer, else the model config's."""
    for name in (GENERATION_NAME, MODEL_CONFIG_NAME):
        ids = end_token_ids(read_optional_json(folder / name), folder / name)
        if ids:
            # Ids past the tokenizer can be drawn where the model's head is wider: they end the answer all the same.
            return ids
    return ()


def _templates(folder: Path, config: Mapping[str, Any], file: Path) -> dict[str, str]:
    found = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(found, str):
        templates["default"] = found
    elif isinstance(found, list):
        for item in found:
            if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("name", "template")):
                raise FormatError(str(file), "chat_template", "a list must hold objects with name and template")
            templates[item["name"]] = item["template"]
    elif found is not None:
        raise FormatError(str(file), "chat_template", f"found {type(found).__name__}, a string or list is needed")
    own = folder / TEMPLATE_NAME
    if own.exists():
        templates["default"] = read_template(own)
    return templates


def read_template(file: Path) -> str:
    """A Jinja file's text. Errors: `ModelError`, `FormatError` when it is too long or not UTF-8."""
    try:
        if file.stat().st_size > MAX_TEMPLATE_BYTES:
            raise FormatError(str(file), "file", f"has more than {MAX_TEMPLATE_BYTES} bytes, no chat template does")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(str(file), "file", f"is not valid UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
