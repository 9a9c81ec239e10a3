"""The parts of a `tokenizer.json`, each recognised by its type and checked.

`folder_vocabulary` reads it.

INVARIANT: a part, or an option of a part, that would change the ids and is not supported is refused by name.

Source: the serialisation of the `tokenizers` library, version 1.0 of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from asyncpage.errors import FormatError
from asyncpage.text import pieces, wordpiece
from asyncpage.text.json_parts import JsonParts, names
from asyncpage.text.sentence_piece_json import read_sentence_pieces
from asyncpage.text.sentence_piece_rules import SentencePieceRules
from asyncpage.text.vocabulary import AddedToken
from asyncpage.text.wordpiece import WordPieceRules

MAX_TOKENS = 1 << 22  # ten times the largest known: an id far out would make tables of its size
MAX_WORD = 1000  # characters of a word that WordPiece takes apart, in quadratic time; 100 is usual


class TokenizerJson:
    """`vocab`, `added` and the model's options are read at once, the rest when asked for.

    `word_pieces`: None for BPE.
    """

    def __init__(self, file: str, root: Mapping[str, Any]) -> None:
        self._parts = JsonParts(file)
        self._root = root
        model = self._parts.mapping(root.get("model"), "model")
        kind = model.get("type", "BPE")
        if kind not in ("BPE", "WordPiece"):
            raise self._parts.unsupported("model", kind, "BPE, WordPiece")
        is_bpe = kind == "BPE"
        for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(option) and is_bpe:
                raise self._parts.unsupported(f"model {option}", model[option], "null")
        self.vocab = self._read_vocab(model.get("vocab"))
        self._merges = self._parts.items(model.get("merges"), "model.merges") if is_bpe else []
        self.ignore_merges = bool(model.get("ignore_merges"))
        self.fuse_unknown = bool(model.get("fuse_unk"))
        unknown = model.get("unk_token")
        if unknown not in self.vocab and (unknown is not None or not is_bpe):
            raise self._parts.wrong("model.unk_token", unknown, "a token of the vocabulary")
        self.unknown_id = None if unknown is None else self.vocab[unknown]
        self.word_pieces = None if is_bpe else self._read_word_pieces(model)
        self.added = tuple(self._read_added())
        self._sentence_pieces = None
        if is_bpe and not self._is_byte_level():
            self._sentence_pieces = read_sentence_pieces(self._parts, root, self.added)
            return
        if is_bpe and model.get("byte_fallback"):
            raise self._parts.unsupported("model byte_fallback with a ByteLevel", True, "false")
        decoder = "ByteLevel" if is_bpe else "WordPiece"
        for part in self._parts.flat(root.get("decoder"), "decoder", "decoders"):
            if part["type"] != decoder:
                raise self._parts.unsupported("decoder", part["type"], decoder)

    @property
    def sentence_pieces(self) -> SentencePieceRules | None:
        """None for byte-level BPE and WordPiece."""
        return None if self._sentence_pieces is None else self._sentence_pieces.rules

    def ids(self) -> dict[str, int]:
        """The id of every text, added tokens first."""
        return {**self.vocab, **{token.text: token.id for token in self.added}}

    def merges(self) -> Iterator[tuple[str, str]]:
        """Pairs, from "a b" strings or from two-element lists."""
        for number, merge in enumerate(self._merges):
            pair = merge.split(" ") if isinstance(merge, str) else merge
            # Half a million of them: a match statement would take a second more.
            if type(pair) is not list or len(pair) != 2 or not type(pair[0]) is type(pair[1]) is str:
                raise self._parts.wrong(f"model.merges[{number}]", merge, "a pair of tokens")
            yield pair[0], pair[1]

    def splitting(self) -> pieces.Splitting:
        """How text is cut: by ByteLevel, alone or behind Digits and Splits with known patterns, or as its kind does."""
        parts = list(self._parts.flat(self._root.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"))
        if self.word_pieces is not None:
            if [part["type"] for part in parts] != ["BertPreTokenizer"]:
                raise self._parts.unsupported("pre_tokenizer", names(parts), "BertPreTokenizer for WordPiece")
            return pieces.Splitting(wordpiece.PATTERN)
        if self._sentence_pieces is not None:
            return self._sentence_pieces.splitting
        *others, last = parts
        if last["type"] != "ByteLevel":
            raise self._parts.unsupported("pre_tokenizer", names(parts), "ByteLevel, alone or last")
        uses_pattern = bool(last.get("use_regex", True))
        add_prefix_space = bool(last.get("add_prefix_space", True))
        if not others:
            return pieces.Splitting(pieces.GPT2 if uses_pattern else pieces.WHOLE, add_prefix_space)
        if add_prefix_space:
            known = "false behind other parts"
            raise self._parts.unsupported("pre_tokenizer ByteLevel add_prefix_space", add_prefix_space, known)
        patterns = [self._known_pattern(part) for part in others]
        if uses_pattern:
            patterns.append(pieces.GPT2)
        if patterns == [pieces.DIGIT, pieces.GPT2]:
            return pieces.Splitting(pieces.SMOLLM)
        if patterns[-1] not in pieces.COVERING:
            patterns.append(pieces.WHOLE)
        return pieces.Splitting(patterns[-1], earlier=tuple(patterns[:-1]))

    def is_nfc(self) -> bool:
        """Whether text is brought to NFC first; no other normaliser is supported, but BERT's with its model."""
        if self.word_pieces is not None or self._sentence_pieces is not None:
            return False  # they have the normaliser
        kinds = [part["type"] for part in self._parts.flat(self._root.get("normalizer"), "normalizer", "normalizers")]
        for kind in kinds:
            if kind != "NFC":
                raise self._parts.unsupported("normalizer", kind, "NFC")
        return bool(kinds)

    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the post-processor puts before and behind a text."""
        before: tuple[int, ...] = ()
        behind: tuple[int, ...] = ()
        for part in self._parts.flat(self._root.get("post_processor"), "post_processor", "processors"):
            if part["type"] == "TemplateProcessing":
                outer_before, outer_behind = self._read_template(part)
                before, behind = outer_before + before, behind + outer_behind
            elif part["type"] == "BertProcessing":
                before, behind = self._bert_end(part, "cls") + before, behind + self._bert_end(part, "sep")
            elif part["type"] != "ByteLevel":  # ByteLevel moves offsets only
                raise self._parts.unsupported(
                    "post_processor", part["type"], "ByteLevel, TemplateProcessing, BertProcessing"
                )
        return before, behind

    def _read_word_pieces(self, model: Mapping[str, Any]) -> WordPieceRules:
        assert self.unknown_id is not None
        prefix, longest = model.get("continuing_subword_prefix", "##"), model.get("max_input_chars_per_word", 100)
        if not isinstance(prefix, str) or not prefix:
            raise self._parts.wrong("model.continuing_subword_prefix", prefix, "a text")
        if type(longest) is not int or not 1 <= longest <= MAX_WORD:
            raise self._parts.wrong("model.max_input_chars_per_word", longest, f"a number from 1 to {MAX_WORD}")
        rules = WordPieceRules(self.unknown_id, prefix=prefix, longest_word=longest)
        parts = list(self._parts.flat(self._root.get("normalizer"), "normalizer", "normalizers"))
        if [part["type"] for part in parts] != ["BertNormalizer"]:
            kinds = " + ".join(part["type"] for part in parts)
            raise self._parts.unsupported("normalizer", kinds or None, "BertNormalizer for WordPiece")
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
                raise self._parts.wrong(f"post_processor.{name}", other, "a token's text and id")

    def _read_vocab(self, vocab: object) -> dict[str, int]:
        vocab = self._parts.mapping(vocab, "model.vocab")
        for text, id in vocab.items():
            if type(id) is not int or not 0 <= id < MAX_TOKENS:
                raise self._parts.wrong(f"model.vocab[{text!r}]", id, f"an id below {MAX_TOKENS}")
        if len(set(vocab.values())) < len(vocab):
            raise FormatError(self._parts.file, "model.vocab", "two tokens have the same id")
        return vocab

    def _read_added(self) -> Iterator[AddedToken]:
        for number, item in enumerate(self._parts.items(self._root.get("added_tokens") or [], "added_tokens")):
            where = f"added_tokens[{number}]"
            match self._parts.mapping(item, where):
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
                    raise self._parts.wrong(where, item, f"a text and an id below {MAX_TOKENS}")

    def _is_byte_level(self) -> bool:
        parts = self._parts.flat(self._root.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
        return any(part["type"] == "ByteLevel" for part in parts)

    def _known_pattern(self, part: Mapping[str, Any]) -> str:
        if part["type"] == "Digits":
            return pieces.DIGIT if part.get("individual_digits") else pieces.DIGITS
        if part["type"] != "Split":
            raise self._parts.unsupported("pre_tokenizer", part["type"], "Digits and Split before a ByteLevel")
        pattern = self._parts.mapping(part.get("pattern"), "pre_tokenizer.pattern").get("Regex")
        behavior = (part.get("behavior"), bool(part.get("invert")))
        # What matches all of a text leaves nothing between its matches to be removed.
        if behavior != ("Isolated", False) and (behavior != ("Removed", True) or pattern not in pieces.COVERING):
            raise self._parts.unsupported("pre_tokenizer Split", behavior[0], "Isolated, not inverted")
        if pattern not in pieces.COVERING and pattern not in pieces.PARTING:
            known = "those of GPT-2, Llama 3, Qwen2, o200k, Tekken and DeepSeek"
            raise self._parts.unsupported("pre_tokenizer pattern", pattern, known)
        return str(pattern)

    def _read_template(self, part: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        specials = self._parts.mapping(part.get("special_tokens", {}), "post_processor.special_tokens")
        before: list[int] = []
        behind: list[int] = []
        side = before
        for item in self._parts.items(part.get("single"), "post_processor.single"):
            match item:
                case {"Sequence": {"id": "A"}} if side is before:
                    side = behind
                case {"SpecialToken": {"id": str(name)}}:
                    ids = self._parts.items(
                        self._parts.mapping(specials.get(name), f"special token {name!r}").get("ids"), name
                    )
                    if not all(type(id) is int and 0 <= id < MAX_TOKENS for id in ids):
                        raise self._parts.wrong(f"post_processor special token {name!r}", ids, "token ids")
                    side += ids
                case _:
                    raise self._parts.wrong("post_processor.single", item, "one sequence A among special tokens")
        return tuple(before), tuple(behind)
