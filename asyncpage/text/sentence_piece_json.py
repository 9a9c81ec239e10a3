"""The parts of a `tokenizer.json` of SentencePiece's kind: where its spaces are written, and how they are taken back.

`tokenizer_json` reads them where no part is byte-level.

INVARIANT: a part, or an option of a part, that would change ids or text and is not supported is refused by name.

Source: the serialisation of the `tokenizers` library, version 1.0 of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncpage.records import record
from asyncpage.text import pieces
from asyncpage.text.json_parts import JsonParts, Part, names
from asyncpage.text.sentence_piece_rules import SPACE, Prefix, SentencePieceRules
from asyncpage.text.vocabulary import AddedToken

SPACES_APART = f"{SPACE}?[^{SPACE}]+|{SPACE}"
"""Cuts before every single U+2581."""

_PREFIXES: Mapping[str, Prefix] = {"always": "each", "first": "first", "never": "none"}

_WRITES_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPENDS = {"type": "Prepend", "prepend": SPACE}
_READS_SPACES = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}


@record(frozen=True, slots=True)
class SentencePieceParts:
    """`splitting`: how normalised text is cut before any merge."""

    rules: SentencePieceRules
    splitting: pieces.Splitting


def read_sentence_pieces(parts: JsonParts, root: Mapping[str, Any], added: Iterable[AddedToken]) -> SentencePieceParts:
    """Errors: `ModelError`, `FormatError`."""
    normalizers = list(parts.flat(root.get("normalizer"), "normalizer", "normalizers"))
    before = list(parts.flat(root.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"))
    if normalizers not in ([], [_WRITES_SPACES], [_PREPENDS, _WRITES_SPACES]):
        raise parts.unsupported(
            "normalizer", normalizers, f"Replace of a space by {SPACE}, alone or behind its Prepend"
        )
    prefix: Prefix = "always" if len(normalizers) == 2 else "none"
    splitting = pieces.Splitting(pieces.WHOLE)
    if [part["type"] for part in before] == ["Metaspace"] and prefix == "none":
        prefix = _prefix(parts, before[0])
        splitting = pieces.Splitting(SPACES_APART) if before[0].get("split") is not False else splitting
    elif not normalizers or not all(_finds_nothing(part) for part in before):
        known = "ByteLevel, or Metaspace, or none behind a normalizer that replaces spaces"
        raise parts.unsupported("pre_tokenizer", names(before), known)
    for token in added:
        if token.normalized and (" " in token.text or SPACE in token.text):
            raise parts.unsupported("a normalized added token with a space in it", token.text, "one without")
    falls_back = bool(parts.mapping(root.get("model"), "model").get("byte_fallback"))
    drops_first_space = _drops_first_space(parts, root, falls_back)
    return SentencePieceParts(SentencePieceRules(prefix, falls_back, drops_first_space), splitting)


def _prefix(parts: JsonParts, metaspace: Part) -> Prefix:
    if metaspace.get("replacement") != SPACE:
        raise parts.unsupported("pre_tokenizer Metaspace replacement", metaspace.get("replacement"), SPACE)
    scheme = metaspace.get("prepend_scheme", "always")
    if not isinstance(scheme, str) or scheme not in _PREFIXES:
        raise parts.unsupported("pre_tokenizer Metaspace prepend_scheme", scheme, ", ".join(_PREFIXES))
    if metaspace.get("add_prefix_space") is False and scheme != "never":
        raise parts.wrong("pre_tokenizer.prepend_scheme", scheme, "never, as add_prefix_space is false,")
    return _PREFIXES[scheme]


def _finds_nothing(part: Part) -> bool:
    """Whether it cuts at spaces, of which the normaliser left none."""
    return part["type"] == "Split" and part.get("pattern") == {"String": " "} and not part.get("invert")


def _drops_first_space(parts: JsonParts, root: Mapping[str, Any], falls_back: bool) -> bool:
    """Whether the decoder does; it has to read what the model writes."""
    decoders = list(parts.flat(root.get("decoder"), "decoder", "decoders"))
    strip = decoders.pop() if decoders and decoders[-1]["type"] == "Strip" else None
    bytes_ = [{"type": "ByteFallback"}] if falls_back else []
    if decoders != [_READS_SPACES, *bytes_, {"type": "Fuse"}]:
        known = f"Replace of {SPACE}{', ByteFallback' if falls_back else ''}, Fuse and at most a Strip"
        raise parts.unsupported("decoder", names(decoders), known)
    if strip is None:
        return False
    options = (strip.get("content"), strip.get("start"), strip.get("stop"))
    if options != (" ", 1, 0):
        raise parts.unsupported("decoder Strip", strip, "one space at the start")
    return True
