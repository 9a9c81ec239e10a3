"""What a simulated engine is built from: a `SimulatedExecutor`, its handshake, and an artificial vocabulary.

`asyncpage simulate` and `bench control-plane` give it to `AsyncEngine.start`.

INVARIANT: everything else in the house is built as for a real model, from the same settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncpage.actors.base import ExecutorEnd
from asyncpage.actors.simulated_executor import SimulatedExecutor
from asyncpage.clock import Clock
from asyncpage.config import EngineConfig
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.step_latency import StepLatency
from asyncpage.house import StandIn, Text
from asyncpage.messages import Handshake, LayerGroup
from asyncpage.pipes.mailbox import Address
from asyncpage.text.artificial_vocabulary import WORDS_FROM, artificial_vocabulary
from asyncpage.text.tokenizer import Tokenizer

VOCAB_SIZE = 2048
MAX_MODEL_LEN = 32_768  # tokens, unless --max-model-len says another
POOL_TOKENS = 1 << 20  # of KV, unless --num-kv-blocks says another

FULL_ATTENTION = (LayerGroup("full", 0, 1),)


def stand_in(
    config: EngineConfig,
    latency: StepLatency | None = None,
    *,
    device: str = "simulated",
    vocab_size: int = VOCAB_SIZE,
    groups: Sequence[LayerGroup] = FULL_ATTENTION,
    known_ids: int | None = None,
    around_index: Callable[[PrefixIndex], PrefixIndex] | None = None,
) -> StandIn:
    """A simulated executor and its text, of the size that `config` asks for.

    `latency` None answers every step at once. A `device` that begins with "cpu" has one step in flight unless
    `config` says otherwise. Answers are words of the vocabulary; only `vocab_size - 1` would end one, and it is never
    drawn. `known_ids`: prompts may have ids below it, the vocabulary's when None.
    `around_index`: see `StandIn`.
    """
    tokenizer = Tokenizer(artificial_vocabulary(vocab_size))
    handshake = simulated_handshake(config, device=device, vocab_size=known_ids or vocab_size, groups=groups)

    def executor(scheduler: Address, clock: Clock) -> ExecutorEnd:
        return SimulatedExecutor(handshake, scheduler, latency, first_token=WORDS_FROM, end_token=vocab_size - 1)

    return StandIn(executor, Text(tokenizer, None), around_index)


def simulated_handshake(
    config: EngineConfig,
    *,
    device: str = "simulated",
    vocab_size: int = VOCAB_SIZE,
    groups: Sequence[LayerGroup] = FULL_ATTENTION,
) -> Handshake:
    """What an executor with a pool of `config.num_kv_blocks` blocks would say of itself."""
    blocks = config.num_kv_blocks or 1 + len(groups) * -(-POOL_TOKENS // config.block_size)
    return Handshake(
        fingerprint="simulated",
        pid=0,
        rank=0,
        blocks=blocks,
        block_size=config.block_size,
        groups=tuple(groups),
        max_model_len=config.max_model_len or MAX_MODEL_LEN,
        vocab_size=vocab_size,
        dtype="none",
        kv_dtype="none",
        device=device,
        attention_backend="none",
        load_ms=0,
        kv_bytes=0,
        hidden_size=2,
    )
