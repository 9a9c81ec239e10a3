"""Pseudonyms: other numbers for token ids, other words for salts and blocks, equal where the true ones are equal.

A journal that leaves prompts out records these in their place, so every prefix match, every common run inside a block
and every end token is the same in a replay, while nobody who reads the file sees an id. The vocabulary is shuffled: a
pseudonym is an id too, so whatever counts by ids needs no more room in a replay. A keyed permutation of a wider space
(a Feistel network over 31 bits) would hide no more, since it is the same code for the same id, and lost for that room.

What this does not hide: how often an id comes and beside which others. Whoever knows one of the prompts, or has a long
journal and patience, learns something about the others. A journal is as confidential as the traffic it was made from.

INVARIANT: two ids, salts or names have the same pseudonym exactly when they are equal. The key is never part of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, shake_256
from typing import Protocol

import numpy as np

from asyncpage.messages import Int32

KEY_BYTES = 32
_MOST_IDS = 1 << 20  # larger than any vocabulary; simulations name a larger one, to take any id


class Names(Protocol):
    """What a journal writes in place of token ids and salts."""

    def of_column(self, ids: Int32) -> Int32: ...

    def of_bytes(self, ids: bytes) -> bytes: ...

    def of_ids(self, ids: Sequence[int]) -> tuple[int, ...]: ...

    def of_word(self, word: str) -> str: ...

    def of_digest(self, digest: bytes) -> bytes: ...


class Pseudonyms:
    """A permutation of a vocabulary, and a keyed digest of words.

    `key`: 32 random bytes. Ids from `vocab_size` on, which no prompt has and no model gives, stay what they are.
    """

    def __init__(self, key: bytes, vocab_size: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, got {len(key)}")
        self._word_key = blake2b(key, digest_size=32, person=b"words").digest()
        # Sorted by 64 random bits each: any order is as likely as another but for ties, one in 10**9 vocabularies.
        ranks = np.frombuffer(shake_256(key).digest(8 * min(vocab_size, _MOST_IDS)), dtype="<u8")
        self._pseudonyms: Int32 = np.argsort(ranks, kind="stable").astype(np.int32)

    def of_column(self, ids: Int32) -> Int32:
        """Pseudonyms of an array of any shape."""
        try:
            return self._pseudonyms[ids.view(np.uint32)]  # seen as unsigned, a negative id is outside, too
        except IndexError:
            is_known = (ids >= 0) & (ids < len(self._pseudonyms))
            renamed = ids.copy()
            renamed[is_known] = self._pseudonyms[ids[is_known]]
            return renamed

    def of_bytes(self, ids: bytes) -> bytes:
        """The same for int32 little-endian."""
        return self.of_column(np.frombuffer(ids, dtype="<i4")).astype("<i4").tobytes()

    def of_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The same for plain numbers."""
        return tuple(self.of_column(np.array(ids, dtype=np.int32)).tolist())

    def of_word(self, word: str) -> str:
        """A digest of a salt that only the key's holder can check; the empty word stays what it is."""
        if not word:
            return ""
        return blake2b(word.encode("utf-8", "surrogatepass"), digest_size=16, key=self._word_key).hexdigest()

    def of_digest(self, digest: bytes) -> bytes:
        """The same for a block's name, which would let anybody try out guesses at its tokens."""
        return blake2b(digest, digest_size=16, key=self._word_key).digest()


class TrueIds:
    """For a journal that may hold token ids: they stay what they are. Salts, which may be secrets, do not, nor do names
    of blocks, which are made with them."""

    def __init__(self, key: bytes) -> None:
        self._pseudonyms = Pseudonyms(key, 0)

    def of_column(self, ids: Int32) -> Int32:
        return ids

    def of_bytes(self, ids: bytes) -> bytes:
        return ids

    def of_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids)

    def of_word(self, word: str) -> str:
        return self._pseudonyms.of_word(word)

    def of_digest(self, digest: bytes) -> bytes:
        return self._pseudonyms.of_digest(digest)


class AsRecorded:
    """For a replay, which runs on what was written: nothing is renamed a second time."""

    def of_column(self, ids: Int32) -> Int32:
        return ids

    def of_bytes(self, ids: bytes) -> bytes:
        return ids

    def of_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids)

    def of_word(self, word: str) -> str:
        return word

    def of_digest(self, digest: bytes) -> bytes:
        return digest
