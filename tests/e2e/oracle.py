"""The oracle for greedy answers, how answers are collected, and what an idle engine looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.messages import TokenPrompt

FORGIVEN_GAP = 1e-3  # two logits closer than this may change places


@dataclass
class Oracle:
    """Another implementation of the same model: says which tokens greedy decoding must give."""

    model: Any
    checked: int = 0
    forgiven: int = 0
    _known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)

    def check(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Every token is the most likely one after those before it, or closer to it than `FORGIVEN_GAP`."""
        key = (tuple(prompt), tuple(tokens))
        if key not in self._known:
            with torch.no_grad():
                ids = torch.tensor([[*prompt, *tokens[:-1]]])
                logits = self.model(ids, logits_to_keep=len(tokens)).logits[0].float()
            best = logits.max(-1)
            gaps = best.values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            wrong = [i for i, gap in enumerate(gaps.tolist()) if gap > FORGIVEN_GAP]
            assert not wrong, f"token {wrong[0]} of {list(tokens)} should be {best.indices[wrong[0]]}"
            self._known[key] = int((gaps > 0).sum())
        self.checked += len(tokens)
        self.forgiven += self._known[key]


def greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, **more)


async def answer(
    engine: AsyncEngine,
    prompt: Sequence[int],
    sampling: SamplingParams,
    on_token: Callable[[], None] = lambda: None,
) -> list[int]:
    """All tokens of one request."""
    tokens: list[int] = []
    async for part in engine.generate(TokenPrompt(torch.tensor(prompt, dtype=torch.int32).numpy().tobytes()), sampling):
        tokens += part.token_ids
        if part.token_ids:
            on_token()
    return tokens


async def check_idle(engine: AsyncEngine) -> None:
    """Once the step in flight is back, nothing runs or waits and no row holds a block.

    A request's end is told before the step that it was in has returned; then steps without rows may save blocks.
    """
    while True:
        was_flying = engine.house.scheduler.stats()["in_flight"]
        await engine.ping(60)
        await engine.ping(60)  # the settlement that the last step's return brought about is over
        stats = engine.house.scheduler.stats()
        if not (was_flying or stats["in_flight"]):
            break
    assert (stats["running"], stats["waiting"]) == (0, 0)
    ledger = engine.house.kv_manager.ledger()
    assert ledger.blank + ledger.cached + ledger.referenced == ledger.total
    assert ledger.referenced == 0
