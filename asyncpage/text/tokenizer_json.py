"""The parts of a `tokenizer.json`, each recognised by its type and checked.

`folder_vocabulary` reads it.

INVARIANT: a part, or an option of a part, that would change the ids and is not supported is refused by name.

Source: the serialisation of the `tokenizers` library, version 1.0 of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from asyncpage.errors import FormatError, ModelError
from asyncpage.text import pieces, wordpiece
from asyncpage.text.vocabulary import AddedToken
from asyncpage.text.wordpiece import WordPieceRules

MAX_TOKENS = 1 << 22  # ten times the largest known: an id far out would make tables of its size
MAX_WORD = 1000  # characters of a word that WordPiece takes apart, in quadratic time; 100 is usual


class TokenizerJson:
    """`vocab`, `added` and the model's options are read at once, the rest when asked for.

    `word_pieces`: None for byte-level BPE.
    """

    def __init__(self, file: str, root: Mapping[str, Any]) -> None:
        self._file = file
        self._root = root
        model = self._object(root.get("model"), "model")
        kind = model.get("type", "BPE")
        if kind not in ("BPE", "WordPiece"):
            raise self._unsupported("model", kind, "BPE, WordPiece")
        is_bpe = kind == "BPE"
        for option in ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(option) and is_bpe:
                raise self._unsupported(f"model {option}", model[option], "null")
        self.vocab = self._read_vocab(model.get("vocab"))
        self._merges = self._list(model.get("merges"), "model.merges") if is_bpe else []
        self.ignore_merges = bool(model.get("ignore_merges"))
        self.fuse_unknown = bool(model.get("fuse_unk"))
        unknown = model.get("unk_token")
        if unknown not in self.vocab and (unknown is not None or not is_bpe):
            raise self._wrong("model.unk_token", unknown, "a token of the vocabulary")
        self.unknown_id = None if unknown is None else self.vocab[unknown]
        self.word_pieces = None if is_bpe else self._read_word_pieces(model)
        self.added = tuple(self._read_added())
        decoder = "ByteLevel" if is_bpe else "WordPiece"
        for part in self._flat(root.get("decoder"), "decoder", "decoders"):
            if part["type"] != decoder:
                raise self._unsupported("decoder", part["type"], decoder)

    def ids(self) -> dict[str, int]:
        """The id of every text, added tokens first."""
        return {**self.vocab, **{token.text: token.id for token in self.added}}

    def merges(self) -> Iterator[tuple[str, str]]:
        """Pairs, from "a b" strings or from two-element lists."""
        for number, merge in enumerate(self._merges):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            match pair:
                case [str(left), str(right)]:
                    yield left, right
                case _:
                    raise self._wrong(f"model.merges[{number}]", merge, "a pair of tokens")

    def splitting(self) -> pieces.Splitting:
        """How text is cut: ByteLevel alone, behind Digits or behind one Split with a known pattern, or as BERT does."""
        parts = list(self._flat(self._root.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"))
        kinds = [part["type"] for part in parts]
        if self.word_pieces is not None:
            if kinds != ["BertPreTokenizer"]:
                raise self._unsupported("pre_tokenizer", " + ".join(kinds) or None, "BertPreTokenizer for WordPiece")
            return pieces.Splitting(wordpiece.PATTERN)
        if not parts or kinds[-1] != "ByteLevel":
            raise self._unsupported("pre_tokenizer", " + ".join(kinds) or None, "ByteLevel, alone or last")
        byte_level = parts[-1]
        uses_pattern = bool(byte_level.get("use_regex", True))
        add_prefix_space = bool(byte_level.get("add_prefix_space", True))
        if len(parts) == 1:
            return pieces.Splitting(pieces.GPT2 if uses_pattern else pieces.WHOLE, add_prefix_space)
        if len(parts) > 2 or add_prefix_space:
            option = " with add_prefix_space" if add_prefix_space else ""
            raise self._unsupported("pre_tokenizer", " + ".join(kinds) + option, "one part before a plain ByteLevel")
        first = parts[0]
        if first["type"] == "Digits" and first.get("individual_digits") and uses_pattern:
            return pieces.Splitting(pieces.SMOLLM)
        if first["type"] == "Split" and not uses_pattern:
            return pieces.Splitting(self._known_pattern(first))
        raise self._unsupported("pre_tokenizer", first, "Digits with individual_digits, or Split with a known pattern")

    def is_nfc(self) -> bool:
        """Whether text is brought to NFC first; no other normaliser is supported, but BERT's with its model."""
        if self.word_pieces is not None:
            return False  # they have the normaliser
        kinds = [part["type"] for part in self._flat(self._root.get("normalizer"), "normalizer", "normalizers")]
        for kind in kinds:
            if kind != "NFC":
                raise self._unsupported("normalizer", kind, "NFC")
        return bool(kinds)

    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the post-processor puts before and behind a text."""
        before: tuple[int, ...] = ()
        behind: tuple[int, ...] = ()
        for part in self._flat(self._root.get("post_processor"), "post_processor", "processors"):
            if part["type"] == "TemplateProcessing":
                outer_before, outer_behind = self._read_template(part)
                before, behind = outer_before + before, behind + outer_behind
            elif part["type"] == "BertProcessing":
                before, behind = self._bert_end(part, "cls") + before, behind + self._bert_end(part, "sep")
            elif part["type"] != "ByteLevel":  # ByteLevel moves offsets only
                raise self._unsupported("post_processor", part["type"], "ByteLevel, TemplateProcessing, BertProcessing")
        return before, behind

    def _read_word_pieces(self, model: Mapping[str, Any]) -> WordPieceRules:
        assert self.unknown_id is not None
        prefix, longest = model.get("continuing_subword_prefix", "##"), model.get("max_input_chars_per_word", 100)
        if not isinstance(prefix, str) or not prefix:
            raise self._wrong("model.continuing_subword_prefix", prefix, "a text")
        if type(longest) is not int or not 1 <= longest <= MAX_WORD:
            raise self._wrong("model.max_input_chars_per_word", longest, f"a number from 1 to {MAX_WORD}")
        rules = WordPieceRules(self.unknown_id, prefix=prefix, longest_word=longest)
        parts = list(self._flat(self._root.get("normalizer"), "normalizer", "normalizers"))
        if [part["type"] for part in parts] != ["BertNormalizer"]:
            kinds = " + ".join(part["type"] for part in parts)
            raise self._unsupported("normalizer", kinds or None, "BertNormalizer for WordPiece")
        lowers = parts[0].get("lowercase", True) is True
        accents = parts[0].get("strip_accents")
        return replace(
            rules,
            is_cleaned=parts[0].get("clean_text", True) is True,
            parts_ideographs=parts[0].get("handle_chinese_chars", True) is True,
            strips_accents=lowers if accents is None else accents is True,
            lowers=lowers,
        )

    def _bert_end(self, part: Mapping[str, Any], name: str) -> tuple[int, ...]:
        match part.get(name):
            case [str(), int(id)] if 0 <= id < MAX_TOKENS:
                return (id,)
            case other:
                raise self._wrong(f"post_processor.{name}", other, "a token's text and id")

    def _read_vocab(self, vocab: object) -> dict[str, int]:
        vocab = self._object(vocab, "model.vocab")
        for text, id in vocab.items():
            if type(id) is not int or not 0 <= id < MAX_TOKENS:
                raise self._wrong(f"model.vocab[{text!r}]", id, f"an id below {MAX_TOKENS}")
        if len(set(vocab.values())) < len(vocab):
            raise FormatError(self._file, "model.vocab", "two tokens have the same id")
        return vocab

    def _read_added(self) -> Iterator[AddedToken]:
        for number, item in enumerate(self._list(self._root.get("added_tokens") or [], "added_tokens")):
            where = f"added_tokens[{number}]"
            match self._object(item, where):
                case {"id": int(id), "content": str(text)} if 0 <= id < MAX_TOKENS and text:
                    yield AddedToken(
                        id=id,
                        text=text,
                        is_special=bool(item.get("special")),
                        lstrip=bool(item.get("lstrip")),
                        rstrip=bool(item.get("rstrip")),
                        single_word=bool(item.get("single_word")),
                        normalized=bool(item.get("normalized")),
                    )
                case _:
                    raise self._wrong(where, item, f"a text and an id below {MAX_TOKENS}")

    def _known_pattern(self, split: Mapping[str, Any]) -> str:
        pattern = self._object(split.get("pattern"), "pre_tokenizer.pattern").get("Regex")
        if split.get("behavior") != "Isolated" or split.get("invert"):
            raise self._unsupported("pre_tokenizer Split", split.get("behavior"), "Isolated, not inverted")
        if pattern not in pieces.PATTERNS:
            raise self._unsupported("pre_tokenizer pattern", pattern, "those of GPT-2, Llama 3 and Qwen2")
        return str(pattern)

    def _read_template(self, part: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        specials = self._object(part.get("special_tokens", {}), "post_processor.special_tokens")
        before: list[int] = []
        behind: list[int] = []
        side = before
        for item in self._list(part.get("single"), "post_processor.single"):
            match item:
                case {"Sequence": {"id": "A"}} if side is before:
                    side = behind
                case {"SpecialToken": {"id": str(name)}}:
                    ids = self._list(self._object(specials.get(name), f"special token {name!r}").get("ids"), name)
                    if not all(type(id) is int and 0 <= id < MAX_TOKENS for id in ids):
                        raise self._wrong(f"post_processor special token {name!r}", ids, "token ids")
                    side += ids
                case _:
                    raise self._wrong("post_processor.single", item, "one sequence A among special tokens")
        return tuple(before), tuple(behind)

    def _flat(self, part: object, where: str, key: str) -> Iterator[dict[str, Any]]:
        """The parts of a part that may be none, one, or a Sequence."""
        if part is None:
            return
        part = self._object(part, where)
        if not isinstance(part.get("type"), str):
            raise self._wrong(f"{where}.type", part.get("type"), "a type's name")
        if part["type"] != "Sequence":
            yield part
            return
        for item in self._list(part.get(key), f"{where}.{key}"):
            inner = self._object(item, where)
            if not isinstance(inner.get("type"), str) or inner["type"] == "Sequence":
                raise self._unsupported(f"{where} in a Sequence", inner.get("type"), "a plain part")
            yield inner

    def _object(self, value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where, value, "an object")
        return value

    def _list(self, value: object, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self._wrong(where, value, "a list")
        return value

    def _wrong(self, where: str, value: object, needed: str) -> FormatError:
        return FormatError(self._file, where, f"found {_short(value)}, {needed} is needed")

    def _unsupported(self, what: str, found: object, known: str) -> ModelError:
        return ModelError(f"{self._file}: {what} {_short(found)} is not supported; supported is {known}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."
