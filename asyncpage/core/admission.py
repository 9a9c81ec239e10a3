"""Who may queue: what a prompt must satisfy before the scheduler accepts it."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpage.errors import Failure
from asyncpage.messages import Admit


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the scheduler is told at birth.

    `capacity_blocks`: usable blocks of the pool. `max_tokens`: the context limit. `depth`: steps in flight.
    `long_prefill_tokens` 0 sets no limit. `eos_ids`: tokens that end every request that does not ignore them.
    `policy` and `victims` by name; `fairness_bound`: see `waiting_queue`. `adapter_slots`: adapters in one batch.
    `most_drafts`: of a row in a step, 0 without speculation. `itl_target_us`: that a step with rows that decode should
    take at most, as far as prompts beside them can be cut; 0 for no bound.
    """

    rows: int
    block_size: int
    groups: int
    capacity_blocks: int
    max_tokens: int
    budget_tokens: int
    long_prefill_tokens: int
    depth: int
    max_queue: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    seed: int
    policy: str = "fcfs"
    victims: str = "last-admitted"
    fairness_bound: int = 0
    adapter_slots: int = 0
    most_drafts: int = 0
    itl_target_us: int = 0


def refusal(admit: Admit, settings: SchedulerSettings, *, living: int, retry_after_s: float) -> Failure | None:
    """Why a prompt may not queue, None when it may. `living`: requests that wait or run now."""
    if admit.options.adapter and not settings.adapter_slots:
        return Failure(400, "adapters are off here; start with --enable-lora", "adapters_off", "model")
    tokens = len(admit.tokens) // 4
    blocks = -(-tokens // settings.block_size) * settings.groups
    if blocks > settings.capacity_blocks or tokens > settings.max_tokens:
        text = (
            f"the prompt has {tokens} tokens and needs {blocks} KV blocks; this server holds {settings.max_tokens} "
            f"tokens a request and {settings.capacity_blocks} blocks in all"
        )
        return Failure(400, text, "context_length_exceeded", "prompt")
    most = settings.max_queue + settings.rows
    if admit.sampling.n > most:
        text = f"n is {admit.sampling.n}, and this server holds {most} requests in all (--max-queue, --max-num-seqs)"
        return Failure(400, text, None, "n")
    if living + admit.sampling.n > most:
        text = f"the waiting queue of the scheduler is full (--max-queue {settings.max_queue}); try again later"
        return Failure(429, text, "queue_full", None, retry_after_s)
    return None
