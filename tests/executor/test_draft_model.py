"""A smaller model that drafts. Where it is the great model itself every draft must stand, which tells that its keys and
values are right wherever blocks go; where it is another, the tokens must be those of a runner without."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import UsageError
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.runner import load_runner
from asyncpage.messages import Load
from asyncpage.pipes.host_arena import HostArena
from tests.executor.near_end import BLOCK_SIZE, GREEDY, Request, Scheduler, fork_and_load, request

VOCABULARY, CONTEXT, DRAFTS = 199, 96, 5
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "device": "cpu",
    "max_model_len": CONTEXT,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "block_size": BLOCK_SIZE,
    "kv_cache_bytes": None,
    "num_kv_blocks": 200,
    "attention_backend": "cpu",
    "grammar_backend": "builtin",
    "cpu_threads": 1,
    "seed": 0,
}
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
Make = Callable[..., ModelRunner]


def save(folder: Path, seed: int, *, vocabulary: int = VOCABULARY, layers: int = 2, heads: int = 6, **more: Any) -> str:
    torch.manual_seed(seed)
    kinds = (MistralConfig, MistralForCausalLM) if "sliding_window" in more else (LlamaConfig, LlamaForCausalLM)
    config = kinds[0](
        vocab_size=vocabulary,
        hidden_size=8 * heads,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=8,
        **{"max_position_embeddings": CONTEXT, "initializer_range": 0.3, **more},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        kinds[1](config).float().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def great(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("great"), 3)


@pytest.fixture
def make(great: str) -> Make:
    def build(draft: str | None = None, **changes: Any) -> ModelRunner:
        settings = {**SETTINGS, "model_path": great, **changes}
        if draft is not None:
            settings |= {"speculation": "draft", "draft_model_path": draft, "most_drafts": DRAFTS}
        return load_runner(Load(settings))

    return build


def prompt(length: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def made() -> list[Request]:
    return [
        request(prompt(3)),
        request(prompt(30), SAMPLED, seed=4),
        request(prompt(11), SamplingParams(temperature=1.3, repetition_penalty=1.3), seed=5),
        request(prompt(17), SamplingParams(temperature=0.0, logprobs=1)),
    ]


def answers(executor: ModelRunner, drafts: int, outputs: int = 24) -> tuple[list[list[int]], Scheduler]:
    """They come one after the other, with prompts in chunks."""
    scheduler = Scheduler(executor)
    requests = made()
    for row, one in enumerate(requests):
        scheduler.start(one, row)
        scheduler.step(chunk=7, drafts=drafts)
    scheduler.run(outputs, chunk=7, drafts=drafts)
    return [one.output[:outputs] for one in requests], scheduler


def stood(one: Request, steps: int) -> bool:
    """Whether every draft did, of a request that sampled in so many steps."""
    return len(one.output) == steps + one.drafted


@pytest.mark.parametrize("kind", ["itself", "smaller", "wider vocabulary", "narrower vocabulary", "windows"])
def test_tokens_are_those_without_a_draft_model(make: Make, great: str, tmp_path: Path, kind: str) -> None:
    path = {
        "itself": lambda: great,
        "smaller": lambda: save(tmp_path, 8, layers=1, heads=4),
        "wider vocabulary": lambda: save(tmp_path, 8, layers=1, vocabulary=VOCABULARY + 30),
        "narrower vocabulary": lambda: save(tmp_path, 8, layers=1, vocabulary=VOCABULARY - 30),
        "windows": lambda: save(tmp_path, 8, layers=1, sliding_window=9),
    }[kind]()
    plain, slow = answers(make(), 0)
    drafted, fast = answers(make(path), DRAFTS)
    assert drafted == plain
    assert fast.number <= slow.number
    if kind == "itself":
        assert fast.number < slow.number / 2


def test_a_draft_model_is_held_in_the_type_of_the_weights_of_the_great_one(make: Make, great: str) -> None:
    plain, _ = answers(make(weights_dtype="bfloat16"), 0)
    executor: Any = make(great, weights_dtype="bfloat16")
    held, computed_in = (getattr(executor._proposer._model, name).weight.dtype for name in ("_embedding", "norm"))
    assert (held, computed_in) == (torch.bfloat16, torch.float32)
    drafted, _ = answers(executor, DRAFTS)
    assert drafted == plain


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_model_that_is_the_model_itself_is_always_right(
    make: Make, great: str, sampling: SamplingParams
) -> None:
    scheduler = Scheduler(make(great))
    one = scheduler.start(request(prompt(13), sampling), 0)
    scheduler.step(chunk=5, drafts=DRAFTS)
    scheduler.step(chunk=5, drafts=DRAFTS)
    assert one.drafted == 0
    for _ in range(6):
        scheduler.step(drafts=DRAFTS)
    assert stood(one, 6)
    assert one.drafted == 6 * DRAFTS
    # It computes nothing while none are asked for, and catches up when some are.
    for _ in range(5):
        scheduler.step()
    scheduler.step(drafts=DRAFTS)
    scheduler.step(drafts=2)
    assert stood(one, 13)
    # In another row and other blocks it begins anew.
    scheduler.stop(one)
    scheduler.start(one, 3)
    scheduler.step(chunk=9, drafts=DRAFTS)
    while len(one.output) + DRAFTS + 1 < 80:
        scheduler.step(chunk=9, drafts=DRAFTS)
        assert len(one.output) <= 80
    assert one.drafted > 7 * DRAFTS + 2


def test_its_keys_and_values_go_with_blocks_that_are_shared_copied_and_saved(make: Make, great: str) -> None:
    arena = HostArena()
    executor = make(great, kv_arena_fd=arena.fd)
    arena.set_size(4, executor.handshake.kv_bytes // executor.handshake.blocks)
    scheduler = Scheduler(executor)
    first = scheduler.start(request(prompt(22)), 0)
    scheduler.step()
    fork, back = fork_and_load(scheduler, first, SAMPLED)
    for _ in range(5):
        scheduler.step(drafts=DRAFTS)
    for one, steps in ((first, 8), (fork, 7), (back, 6)):
        assert one.drafted == 5 * DRAFTS
        assert stood(one, steps)


def test_rows_that_lag_by_more_than_a_step_takes_catch_up_in_several_passes(make: Make, great: str) -> None:
    scheduler = Scheduler(make(great, max_num_batched_tokens=20, max_num_seqs=4))
    requests = [scheduler.start(request(prompt(5 + row)), row) for row in range(3)]
    for _ in range(30):
        scheduler.step(budget=20)
    for _ in range(2):
        scheduler.step(budget=18, drafts=DRAFTS)
    assert all(one.drafted == 2 * DRAFTS for one in requests)
    assert all(stood(one, 32) for one in requests)


def test_no_draft_lies_beyond_what_the_draft_model_takes(make: Make, tmp_path: Path) -> None:
    executor = make(save(tmp_path, 3, max_position_embeddings=24))
    scheduler = Scheduler(executor)
    one = scheduler.start(request(prompt(15)), 0)
    long = scheduler.start(request(prompt(30)), 1)
    plain = Scheduler(make())
    other = plain.start(request(prompt(15)), 0)
    plain.run(40)
    scheduler.run(40, drafts=DRAFTS)
    assert one.output[:40] == other.output[:40]
    assert one.drafted > 0
    assert long.drafted == 0


def test_what_does_not_go_together_is_refused_by_name(make: Make, great: str, tmp_path: Path) -> None:
    windows = save(tmp_path / "windows", 3, sliding_window=16)
    with pytest.raises(UsageError, match="looks further back than every layer of the model"):
        make(great, model_path=windows)
    narrower = save(tmp_path / "narrower", 3, layers=1, sliding_window=16)
    assert answers(make(narrower, model_path=windows), DRAFTS)[0] == answers(make(model_path=windows), 0)[0]


def test_a_block_counts_the_draft_models_bytes_and_a_successor_must_have_the_same_one(
    make: Make, great: str, tmp_path: Path
) -> None:
    plain, both = make().handshake, make(great).handshake
    other = make(save(tmp_path, 9)).handshake
    assert both.kv_bytes == other.kv_bytes == 2 * plain.kv_bytes
    assert len({plain.fingerprint, both.fingerprint, other.fingerprint}) == 3
