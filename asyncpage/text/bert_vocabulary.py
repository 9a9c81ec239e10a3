"""The vocabulary of a BERT folder without `tokenizer.json`: `vocab.txt`, a token a line, and the options beside it.

`folder_vocabulary` calls it.

INVARIANT: an option that would change the ids and is not supported is refused by name.

Source: the file layout of the first BERT release, and the options of the `transformers` library's BertTokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.text import wordpiece
from asyncpage.text.generation import read_optional_json
from asyncpage.text.pieces import Splitting
from asyncpage.text.vocabulary import AddedToken, Vocabulary
from asyncpage.text.wordpiece import WordPieceRules

BERT_NAME = "vocab.txt"
CONFIG_NAME = "tokenizer_config.json"
MAX_BYTES = 16 * 1024 * 1024  # the largest known, of 500 thousand tokens, have six
CLASSES = (None, "BertTokenizer", "BertTokenizerFast")

_NAMED = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def read_bert_vocabulary(folder: Path) -> Vocabulary:
    """Errors: `ModelError` for a tokenizer of another kind, `FormatError` when a file is malformed."""
    file = folder / BERT_NAME
    config = read_optional_json(folder / CONFIG_NAME)
    if config.get("tokenizer_class") not in CLASSES:
        raise ModelError(
            f"{folder}: the tokenizer {config['tokenizer_class']!r} is read from a tokenizer.json, which is not there"
        )
    if not config.get("do_basic_tokenize", True) or config.get("never_split"):
        raise ModelError(f"{folder}: do_basic_tokenize false and never_split are not supported in {CONFIG_NAME}")
    tokens = _lines(file)
    ids = {token: id for id, token in enumerate(tokens)}
    named = {role: _text(config.get(role), default) for role, default in _NAMED.items()}
    for role in ("unk_token", "cls_token", "sep_token"):
        if named[role] not in ids:
            raise FormatError(str(file), role, f"{named[role]!r} is not among its {len(tokens)} tokens")
    lowers = config.get("do_lower_case", True) is True
    accents = config.get("strip_accents")
    rules = WordPieceRules(
        unknown_id=ids[named["unk_token"]],
        parts_ideographs=config.get("tokenize_chinese_chars", True) is True,
        strips_accents=lowers if accents is None else accents is True,
        lowers=lowers,
    )
    return Vocabulary(
        source=str(file),
        tokens=tokens,
        merges=lambda: iter(()),
        added=tuple(AddedToken(ids[text], text) for text in dict.fromkeys(named.values()) if text in ids),
        splitting=Splitting(wordpiece.PATTERN),
        unknown_id=rules.unknown_id,
        prefix_ids=(ids[named["cls_token"]],),
        suffix_ids=(ids[named["sep_token"]],),
        named=named,
        word_pieces=rules,
    )


def _lines(file: Path) -> list[str]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise FormatError(str(file), "file", f"has more than {MAX_BYTES} bytes, no vocabulary does")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(str(file), "file", f"is not valid UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from error
    return text.removesuffix("\n").split("\n")


def _text(value: Any, default: str) -> str:
    """A special token is told as its text, or as an object with it."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else default
