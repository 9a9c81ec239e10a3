"""What a call used, in the API's shape.

The stream's last chunk, its running counts and the collected answer all come from here.

INVARIANT: a prompt is counted once, however many choices it has; total is prompt plus completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncpage.messages import Finish


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole call."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted_drafts,
                "rejected_prediction_tokens": self.rejected_drafts,
            },
        }


def total_usage(finishes: Sequence[Finish], n: int) -> Usage:
    """The sum over a call's choices, in index order, `n` of each prompt."""
    prompts = [finishes[start : start + n] for start in range(0, len(finishes), n)]
    return Usage(
        prompt_tokens=sum(choices[0].prompt_tokens for choices in prompts),
        completion_tokens=sum(finish.completion_tokens for finish in finishes),
        # Siblings find the prompt that the first of them computed: what was saved is what the worst of them shows.
        cached_tokens=sum(min(finish.cached_tokens for finish in choices) for choices in prompts),
        accepted_drafts=sum(finish.accepted_drafts for finish in finishes),
        rejected_drafts=sum(finish.rejected_drafts for finish in finishes),
    )
