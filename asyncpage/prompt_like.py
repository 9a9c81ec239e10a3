"""What in-process callers may give as a prompt, and the message that is made of it.

`AsyncEngine` and `LLM` take it from Python programs; the server makes its prompts itself.

INVARIANT: whatever token ids are given, they are refused by their place or fit the message's column.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt, Prompt, TextPrompt, TokenPrompt

PromptLike = str | Sequence[int] | Prompt


def as_prompt(prompt: PromptLike) -> Prompt:
    """Errors: `RequestError` for a token id that no vocabulary can have."""
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
