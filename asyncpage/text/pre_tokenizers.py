"""What the names of pre-tokenisers in GGUF files stand for.

`gguf_vocabulary` looks a file's name up.

INVARIANT: a name that is not here is refused, never taken for one like it.

Source: the names that llama.cpp's converter writes, each for the published tokenizer that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncpage.records import record
from asyncpage.text import pieces


@record(frozen=True, slots=True)
class PreTokenizer:
    """`pattern`, `earlier`: as in `Splitting`. The rest is what the file has no key for, or a key that may be absent:

    `is_nfc`: its tokenizers bring text to Unicode form NFC. `ignores_merges`: a piece that is a token is taken whole.
    `begins_with_bos`: a text prompt does.
    """

    pattern: str
    earlier: tuple[str, ...] = ()
    is_nfc: bool = False
    ignores_merges: bool = False
    begins_with_bos: bool = False


_LLAMA3 = PreTokenizer(pieces.LLAMA3, ignores_merges=True, begins_with_bos=True)
_CL100K = PreTokenizer(pieces.LLAMA3)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": PreTokenizer(pieces.GPT2),
    "olmo": PreTokenizer(pieces.GPT2, is_nfc=True),
    "smollm": PreTokenizer(pieces.SMOLLM),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "qwen2": PreTokenizer(pieces.QWEN2, is_nfc=True),
    "tekken": PreTokenizer(pieces.TEKKEN, ignores_merges=True, begins_with_bos=True),
    "gpt-4o": PreTokenizer(pieces.O200K),
    "deepseek-llm": PreTokenizer(pieces.DEEPSEEK_LLM[-1], pieces.DEEPSEEK_LLM[:-1]),
    "deepseek-v3": PreTokenizer(pieces.DEEPSEEK_V3[-1], pieces.DEEPSEEK_V3[:-1]),
}
