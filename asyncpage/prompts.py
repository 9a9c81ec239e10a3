"""What Python programs may give as a prompt, and the message's form of it.

The engine's callers give one; the tokenizer is sent what it becomes.

INVARIANT: token ids in a prompt fit the column that they travel in.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt, Prompt, TextPrompt, TokenPrompt

PromptLike = str | Sequence[int] | Prompt


def as_prompt(prompt: PromptLike) -> Prompt:
    """Text, token ids, or a prompt as it is. Errors: `RequestError` for an id outside any vocabulary."""
    match prompt:
        case str():
            return TextPrompt(prompt)
        case TextPrompt() | TokenPrompt() | ChatPrompt():
            return prompt
        case _:
            for index, token in enumerate(prompt):
                if not -(2**31) <= token < 2**31:  # the tokenizer judges those that fit its column
                    text = f"prompt: token id {token} at index {index} is outside any vocabulary"
                    raise RequestError(text, param="prompt")
            return TokenPrompt(b"".join(int(token).to_bytes(4, "little", signed=True) for token in prompt))
