"""How many KV blocks the memory makes that the executor may take.

`load_runner` asks, before and after the weights are there, with what `machine` found available.

INVARIANT: a pool that this grants holds one request of the full context and leaves the machine what others hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncpage.errors import UsageError

SHARE = 0.5
"""Of what is free after the weights, for the KV pool: a cache grows until it is full, and others live here too."""

WORKING_BYTES = 256 * 1024**2
"""Beside weights and KV: activations of a step, logits and torch's own buffers."""


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What decides the size of the pool.

    `block_bytes`: of one block in all KV tensors together. `groups`: block tables a request has.
    `explicit_blocks` and `explicit_bytes`: what the user asked for, at most one of them.
    """

    block_bytes: int
    block_size: int
    groups: int
    max_model_len: int
    max_num_seqs: int
    explicit_blocks: int | None = None
    explicit_bytes: int | None = None

    def blocks_for(self, tokens: int) -> int:
        """Blocks that one request of so many tokens holds."""
        return -(-tokens // self.block_size) * self.groups

    @property
    def asked_blocks(self) -> int | None:
        """Blocks of the size that the user gave, None when nobody gave one."""
        if self.explicit_blocks is not None:
            return self.explicit_blocks
        return None if self.explicit_bytes is None else self.explicit_bytes // self.block_bytes

    def shortened(self) -> PoolDemand:
        """The same with `max_model_len` cut to what the user's pool holds: nobody asked for both."""
        blocks = self.asked_blocks
        if blocks is None:
            return self
        longest = (blocks - 1) // self.groups * self.block_size
        return replace(self, max_model_len=max(1, min(self.max_model_len, longest)))


def pool_blocks(demand: PoolDemand, available_bytes: int) -> int:
    """Blocks of the KV pool, block 0 (never handed out) among them.

    By default a share of what is available, and no more than `max_num_seqs` full contexts can use.
    Errors: `UsageError` when that does not hold one request of `max_model_len` tokens, or when an explicit size is
    more than there is, with the numbers and the flags.
    """
    needed = demand.blocks_for(demand.max_model_len) + 1
    blocks = demand.asked_blocks
    if blocks is None:
        most = demand.blocks_for(demand.max_model_len) * demand.max_num_seqs + 1
        # One request must fit even where the share alone would not hold it.
        blocks = min(most, max(int(available_bytes * SHARE) // demand.block_bytes, needed))
    if blocks * demand.block_bytes > available_bytes:
        raise UsageError(_too_little(demand, blocks, available_bytes))
    if blocks < needed:
        raise UsageError(
            f"a KV pool of {blocks} blocks does not hold one request of {demand.max_model_len} tokens, which needs "
            f"{needed} (block 0 is never handed out); raise --num-kv-blocks or --kv-cache-bytes "
            f"({gib(needed * demand.block_bytes)}), or lower --max-model-len"
        )
    return blocks


def check_model(weight_bytes: int, demand: PoolDemand, *, available: int) -> None:
    """Refuse a model that cannot fit, before its weights are read.

    The KV pool must hold one request of `max_model_len` tokens, or is as large as the user asked for.
    Errors: `UsageError` with what is needed, what was found and the flags to turn.
    """
    asked = demand.asked_blocks
    pool = demand.block_bytes * (demand.blocks_for(demand.max_model_len) + 1 if asked is None else asked)
    if weight_bytes + pool + WORKING_BYTES > available:
        for_what = f"the KV cache of {demand.max_model_len} tokens" if asked is None else "the KV pool asked for"
        turn = "--max-model-len" if asked is None else "--num-kv-blocks or --kv-cache-bytes"
        raise UsageError(
            f"too little memory: {gib(weight_bytes)} of weights, {gib(pool)} for {for_what} and {gib(WORKING_BYTES)} "
            f"to work with are needed, {gib(available)} are available; lower {turn}, use --weights-dtype bfloat16, "
            "free some or serve a smaller model"
        )


def check_weights(weight_bytes: int, *, available: int) -> None:
    """Refuse a model of which only the weights matter, before they are read. Errors: `UsageError`, as `check_model`."""
    if weight_bytes + WORKING_BYTES > available:
        raise UsageError(
            f"too little memory: {gib(weight_bytes)} of weights and {gib(WORKING_BYTES)} to work with are needed, "
            f"{gib(available)} are available; use --dtype bfloat16, free some or serve a smaller model"
        )


def gib(count: int) -> str:
    """A count of bytes as people read it."""
    return f"{count / 1024**3:.2f} GiB"


def _too_little(demand: PoolDemand, blocks: int, available: int) -> str:
    if demand.asked_blocks is None:
        what, turn = f"the KV cache of one request of {demand.max_model_len} tokens", "lower --max-model-len"
    else:
        what, turn = f"the KV pool asked for ({blocks} blocks)", "lower --num-kv-blocks or --kv-cache-bytes"
    return (
        f"too little memory: {what} needs {gib(blocks * demand.block_bytes)} beside the weights, "
        f"{gib(available)} are available; {turn}, use --kv-cache-dtype bfloat16 or free some"
    )
