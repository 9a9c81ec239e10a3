"""What the Python API returns: a part of an answer as it comes, and a whole answer."""

from __future__ import annotations

from collections.abc import Iterable

from asyncpage.messages import Finish, FinishReason, LogprobEntry
from asyncpage.records import record
from asyncpage.text.token_logprobs import TokenTable, alternatives


@record(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability and rank, and the most likely ones: id, text, bytes, log-probability.

    `logprob` None: the first prompt token has none.
    """

    token: int
    text: str
    raw: bytes
    logprob: float | None
    rank: int
    top: tuple[tuple[int, str, bytes, float], ...]


@record(frozen=True, slots=True)
class Part:
    """More of one choice's answer. The last part of a choice carries its `finish`.

    `index`: which of the `n` choices. `token_ids`: tokens that are new; their text may come with a later part.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None


@record(frozen=True, slots=True)
class Completion:
    """One whole choice. `stop_reason`: the stop string or token id that ended it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None


@record(frozen=True, slots=True)
class RequestOutput:
    """Everything that came of one prompt. `cached_tokens` of the prompt were not computed again."""

    outputs: tuple[Completion, ...]
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: tuple[TokenLogprob, ...] | None

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.outputs[0].text


def gather(parts: list[Part], n: int, *, has_logprobs: bool, has_prompt_logprobs: bool) -> RequestOutput:
    """A whole output from all the parts of its `n` choices."""
    completions = []
    finishes = []
    for index in range(n):
        own = [part for part in parts if part.index == index]
        finish = own[-1].finish
        if finish is None:
            raise ValueError(f"choice {index} has not finished")
        finishes.append(finish)
        completions.append(
            Completion(
                index=index,
                text="".join(part.text for part in own),
                token_ids=tuple(token for part in own for token in part.token_ids),
                finish_reason=finish.reason,
                stop_reason=finish.stop_reason,
                logprobs=tuple(entry for part in own for entry in part.logprobs) if has_logprobs else None,
            )
        )
    prompt = tuple(entry for part in parts if part.index == 0 for entry in part.prompt_logprobs)
    return RequestOutput(
        outputs=tuple(completions),
        prompt_tokens=finishes[0].prompt_tokens,
        cached_tokens=finishes[0].cached_tokens,
        prompt_logprobs=prompt if has_prompt_logprobs else None,
    )


def token_logprobs(entries: Iterable[LogprobEntry], table: TokenTable) -> tuple[TokenLogprob, ...]:
    """Entries with their texts. Alternatives that are not possible (minus infinity, or none at all) are left out."""
    text, raw = table.token_text, table.token_bytes
    return tuple(
        TokenLogprob(
            *(entry[0], text(entry[0]), raw(entry[0]), entry[1], entry[2]),
            top=tuple((id, text(id), raw(id), logprob) for _, id, logprob in alternatives(entry)),
        )
        for entry in entries
    )
