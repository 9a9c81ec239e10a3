"""The 256 printable characters under which byte-level vocabularies spell bytes.

The vocabulary readers and the tokenizer translate through it.

INVARIANT: `spell` and `unspell` are inverse on every byte string.

Source: the byte encoder of GPT-2 (Radford et al., 2019): printable Latin-1 bytes stand for themselves, the other 68
are counted up from U+0100.
"""

from __future__ import annotations

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTABLE)

CHARACTERS: tuple[str, ...] = tuple(
    chr(0x100 + _OTHERS.index(byte)) if byte in _OTHERS else chr(byte) for byte in range(256)
)
"""The character of each byte, by value."""

_BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}
_SPELL = {byte: ord(character) for byte, character in enumerate(CHARACTERS)}


def spell(data: bytes) -> str:
    """The vocabulary's spelling of `data`, one character a byte."""
    return data.decode("latin-1").translate(_SPELL)


def unspell(token: str) -> bytes:
    """The bytes that a vocabulary entry stands for; an entry with a foreign character stands for its own UTF-8."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")
