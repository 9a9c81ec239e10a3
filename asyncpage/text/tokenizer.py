"""Text to token ids and back, by byte-level BPE, SentencePiece's BPE or WordPiece.

The tokenizer actor encodes with it, in slices; the detokenizer reads its table of bytes.

INVARIANT: ids are those of the model's own tokenizer; work between two slices is bounded whatever the text; the
cache is bounded and never holds a long piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from asyncpage.errors import ModelError, RequestError
from asyncpage.text.pair_merges import SHORT_SYMBOLS
from asyncpage.text.vocabulary import Vocabulary
from asyncpage.text.vocabulary_kind import kind_of
from asyncpage.text.vocabulary_source import load_vocabulary

MAX_CACHED_PIECES = 1 << 16  # some 10 MB; natural text repeats far fewer
MAX_CACHED_CHARACTERS = 32  # longer pieces hardly repeat
PIECES_A_LOOK = 256  # cached pieces between two looks at the clock: about 50 us
MISS_COST = 32  # what a piece that must be merged costs, in cached pieces


class Tokenizer:
    """A vocabulary at work. Nothing in it changes but the cache, so threads may share it.

    `vocab_size`: ids are below it. `bos_id`: None where the model has none. `add_bos`: whether a text prompt begins
    with it. `suffix_ids`: put behind a text prompt. `eos_ids`: ids that end an answer. `special_ids`: control tokens.
    `bytes_by_id`: what each id stands for. `named`: texts of tokens by their role (`bos_token`). `drops_first_space`:
    the one that a text's tokens begin with is not shown.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Errors: `ModelError` when the merges do not fit the tokens."""
        tokens, added = vocabulary.tokens, vocabulary.added
        self.vocab_size = len(tokens)
        self.bos_id = vocabulary.bos_id
        self.add_bos = vocabulary.bos_id is not None and vocabulary.bos_id in vocabulary.prefix_ids
        self.eos_ids = vocabulary.end_ids
        self.named = dict(vocabulary.named)
        self.special_ids = frozenset(token.id for token in added if token.is_special)
        self._prefix_ids, self.suffix_ids = vocabulary.prefix_ids, vocabulary.suffix_ids
        for id in (*self._prefix_ids, *self.suffix_ids):
            if id >= self.vocab_size:
                raise ModelError(f"{vocabulary.source}: id {id} is put around texts, the vocabulary ends before it")
        ids = {token: id for id, token in enumerate(tokens) if token and id not in vocabulary.outside}
        kind = kind_of(vocabulary, ids)
        self._finder, self._begin, self._cut, self._encoder = kind.finder, kind.begin, kind.cut, kind.encoder
        self.drops_first_space = kind.drops_first_space
        bytes_by_id = [kind.shown(token) for token in tokens]
        for token in added:
            bytes_by_id[token.id] = kind.shown_added(token.text)
        self.bytes_by_id: Sequence[bytes] = tuple(bytes_by_id)
        self._shown = tuple(b"" if id in self.special_ids else data for id, data in enumerate(bytes_by_id))
        self._texts = tuple(map(_text_or_none, bytes_by_id))
        self._shown_texts = tuple("" if id in self.special_ids else text for id, text in enumerate(self._texts))
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, parse_special: bool = True, add_special: bool = True, guard: str = "") -> list[int]:
        """The ids of `text`, in one go. Parameters and errors as in `encode_slices`."""
        slices = self.encode_slices(
            text, parse_special=parse_special, add_special=add_special, guard=guard, slice_s=math.inf, now=float
        )
        while True:
            try:
                next(slices)
            except StopIteration as end:
                ids: list[int] = end.value
                return ids

    def encode_slices(
        self,
        text: str,
        *,
        parse_special: bool = True,
        add_special: bool = True,
        guard: str = "",
        continues: bool = False,
        slice_s: float,
        now: Callable[[], float],
    ) -> Generator[None, None, list[int]]:
        """The ids of `text`, yielding about every `slice_s` seconds by the clock `now`.

        `parse_special`: texts of control tokens become those tokens. `add_special`: put the model's own ids around
        the text. `guard`: a character that keeps control-token texts apart and is not part of the text. `continues`: it
        goes on with another text, so no space that the model wants at a beginning goes before it.
        Errors: `RequestError` for text that is not Unicode (half a surrogate pair).
        """
        ids = list(self._prefix_ids) if add_special else []
        cache, begin = self._cache, self._begin
        pace = _Pace(slice_s, now)
        left = PIECES_A_LOOK
        parts = self._finder.split(text, parse_special=parse_special, guard=guard, continues=continues)
        try:
            for number, part in enumerate(parts):
                if isinstance(part, int):
                    ids.append(part)
                    left -= 1
                    if left <= 0:
                        left = PIECES_A_LOOK
                        yield from pace.look()
                    continue
                if begin is not None and (number or not continues):
                    part = begin(part, not number)
                for piece in self._cut(part):
                    known = cache.get(piece)
                    if known is None:
                        known = yield from self._encode_piece(piece, pace)
                        left -= MISS_COST
                    ids += known
                    left -= 1
                    if left <= 0:
                        left = PIECES_A_LOOK
                        yield from pace.look()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not Unicode: half a surrogate pair, U+{ord(error.object[error.start]):04X}"
            ) from None
        if add_special:
            ids += self.suffix_ids
        return ids

    def _encode_piece(self, piece: str, pace: _Pace) -> Generator[None, None, tuple[int, ...]]:
        """The ids of a piece that is not in the cache, which holds it afterwards if it is short."""
        data = piece.encode()
        if len(data) <= SHORT_SYMBOLS:
            ids = self._encoder.encode(data)
        else:
            long: list[int] = []
            for _ in self._encoder.encode_in_portions(data, long):
                yield from pace.look()
            ids = tuple(long)
        if len(piece) <= MAX_CACHED_CHARACTERS:
            if len(self._cache) >= MAX_CACHED_PIECES:
                self._cache.clear()
            self._cache[piece] = ids
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The bytes that an id stands for, b"" for an id that the vocabulary does not have."""
        return self.bytes_by_id[id] if 0 <= id < self.vocab_size else b""

    def token_text(self, id: int) -> str:
        """An id as the API shows a single token: its text, or its bytes where they are no whole characters."""
        text = self._texts[id] if 0 <= id < self.vocab_size else ""
        return text if text is not None else "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes_by_id[id])

    def is_special(self, id: int) -> bool:
        """Whether an id is a control token."""
        return id in self.special_ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no characters become U+FFFD."""
        table, size = self._shown if skip_special else self.bytes_by_id, self.vocab_size
        return self.whole_text(b"".join([table[id] for id in ids if 0 <= id < size]))

    def whole_text(self, data: bytes) -> str:
        """What the tokens of a text, from its first on, stand for, as text; bytes that are no characters are U+FFFD."""
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.drops_first_space else text

    def shown_bytes(self, *, skip_special: bool) -> Sequence[bytes]:
        """The bytes to show for each id: those of control tokens are b"" with `skip_special`."""
        return self._shown if skip_special else self.bytes_by_id

    def shown_texts(self, *, skip_special: bool) -> Sequence[str | None]:
        """The same as text, None for an id whose bytes are no whole characters."""
        return self._shown_texts if skip_special else self._texts


class _Pace:
    """Says when a slice is over."""

    __slots__ = ("_deadline", "_now", "_slice_s")

    def __init__(self, slice_s: float, now: Callable[[], float]) -> None:
        self._slice_s = slice_s
        self._now = now
        self._deadline = now() + slice_s

    def look(self) -> Iterator[None]:
        """Yields once if the slice is over, and begins the next one when work goes on."""
        if self._now() >= self._deadline:
            yield
            self._deadline = self._now() + self._slice_s


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file, or of a folder with `tokenizer.json`.

    Errors: `ModelError` naming a kind that is not supported, `FormatError` when a file is malformed.
    """
    return Tokenizer(load_vocabulary(path))


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
