"""The runner on a tiny random model: against transformers on the same weights, however the work is cut and mixed."""

import warnings
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from asyncpage import machine
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ModelError, ProtocolError, UsageError
from asyncpage.executor import model_runner, runner
from asyncpage.executor.grammar import Allowed, Grammars
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.runner import load_runner
from asyncpage.messages import (
    EMPTY,
    Constraint,
    LearnGrammar,
    LearnVocabulary,
    Load,
    NewRow,
    RequestId,
    Step,
)
from asyncpage.pipes.host_arena import HostArena
from tests.executor.near_end import BLOCK_SIZE, GREEDY, Scheduler, request
from tests.grammar.networks import byte, network, star

VOCABULARY, CONTEXT = 199, 96
NAN_TOKEN = 198
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "device": "cpu",
    "max_model_len": CONTEXT,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 48,
    "block_size": BLOCK_SIZE,
    "kv_cache_bytes": None,
    "num_kv_blocks": 120,
    "attention_backend": "cpu",
    "grammar_backend": "builtin",
    "cpu_threads": 1,
    "seed": 0,
}


@dataclass
class Oracle:
    """transformers' own model, one sequence at a time, without a cache."""

    path: Path
    model: LlamaForCausalLM
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def logits(self, tokens: Iterable[int]) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(torch.tensor([list(tokens)])).logits[0]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        answer = self.answers.setdefault(tuple(prompt), [])
        while len(answer) < count:
            answer.append(int(self.logits([*prompt, *answer])[-1].argmax()))
        return answer[:count]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).float().eval()
    model.model.embed_tokens.weight.data[NAN_TOKEN] = torch.nan
    model.lm_head.weight.data[NAN_TOKEN] = 0.0
    path = tmp_path_factory.mktemp("tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        model.save_pretrained(path)
    return Oracle(path, model)


@pytest.fixture(scope="module")
def make(oracle: Oracle) -> Callable[..., ModelRunner]:
    return lambda **changes: load_runner(Load({**SETTINGS, "model_path": str(oracle.path), **changes}))


def prompts(*lengths: int) -> list[list[int]]:
    generator = np.random.default_rng(sum(lengths))
    return [generator.integers(0, NAN_TOKEN, length).tolist() for length in lengths]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("chunk", [1, 5, 48])
def test_greedy_tokens_are_transformers_with_prefill_chunks_and_decodes_in_one_batch(
    oracle: Oracle, make: Callable[..., ModelRunner], backend: str, chunk: int
) -> None:
    scheduler = Scheduler(make(attention_backend=backend))
    steps = 0
    requests = [request(prompt) for prompt in prompts(1, 7, 30, 16, 45)]
    outputs = 6 if backend == "reference" else 14
    mixed = False
    for row, one in enumerate(requests):  # they come one after the other, into running work
        scheduler.start(one, row)
        for _ in range(2):
            done = scheduler.step(chunk=chunk)
            steps += 1
            mixed = mixed or 0 < len(done.rows) < len(scheduler.living)
    scheduler.run(outputs, chunk=chunk)
    assert mixed or chunk == 48
    for one in requests:
        assert one.output[:outputs] == oracle.greedy(one.prompt, outputs)


def test_a_preempted_request_goes_on_where_it_was_in_another_row_and_other_blocks(
    oracle: Oracle, make: Callable[..., ModelRunner]
) -> None:
    scheduler = Scheduler(make())
    first, second = (request(prompt) for prompt in prompts(21, 10))
    scheduler.start(first, 0)
    scheduler.start(second, 1)
    for _ in range(6):
        scheduler.step()
    scheduler.stop(first)
    for _ in range(3):
        scheduler.step()
    scheduler.start(first, 5)
    scheduler.run(16, chunk=9)
    assert first.output[:16] == oracle.greedy(first.prompt, 16)
    assert second.output[:16] == oracle.greedy(second.prompt, 16)


SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2, logprobs=2)


def test_a_seeded_answer_is_the_same_alone_in_a_batch_after_preemption_and_after_a_restart(
    make: Callable[..., ModelRunner],
) -> None:
    prompt, other, third = prompts(19, 33, 4)

    def alone() -> list[int]:
        scheduler = Scheduler(make(), seed=1)
        one = scheduler.start(request(prompt, SAMPLED), 0)
        scheduler.run(12)
        return one.output

    expected = alone()
    assert alone() == expected  # another process would load the same
    assert len(set(expected)) > 4

    scheduler = Scheduler(make(), seed=2)
    scheduler.start(request(other, SamplingParams(temperature=1.2), seed=7), 2)
    scheduler.step()
    one = scheduler.start(request(prompt, SAMPLED), 0)
    scheduler.start(request(third), 1)
    for _ in range(5):
        scheduler.step(chunk=6)
    scheduler.stop(one)
    scheduler.step()
    scheduler.start(one, 4)
    while len(one.output) < 12:
        scheduler.step(chunk=6)
    assert one.output == expected


def test_two_rows_share_a_prefixes_blocks_and_a_copied_block_serves_a_fork(
    oracle: Oracle, make: Callable[..., ModelRunner]
) -> None:
    scheduler = Scheduler(make())
    prompt = prompts(22)[0]
    first = scheduler.start(request(prompt), 0)
    scheduler.step()
    # 5 full blocks are shared; the sixth holds 2 tokens, and the fork writes into a copy of it.
    target = scheduler.free.pop()
    scheduler.copies = [(first.blocks[5], target, 2)]
    fork = scheduler.start(request(prompt), 1, computed=21, blocks=[*first.blocks[:5], target])
    # A third shares the full blocks only, and goes on differently.
    other = scheduler.start(request([*prompt[:20], 9, 8, 7]), 2, computed=20, blocks=first.blocks[:5])
    outputs = 10
    while min(len(one.output) for one in (first, fork, other)) < outputs:
        scheduler.step()
    assert first.output[:outputs] == fork.output[:outputs] == oracle.greedy(prompt, outputs)
    assert other.output[:outputs] == oracle.greedy(other.prompt, outputs)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_blocks_come_back_from_the_host_also_into_another_runner(
    oracle: Oracle, make: Callable[..., ModelRunner], backend: str
) -> None:
    arena = HostArena()
    scheduler = Scheduler(make(attention_backend=backend, kv_arena_fd=arena.fd))
    handshake = scheduler.executor.handshake
    arena.set_size(8, handshake.kv_bytes // handshake.blocks)
    prompt = prompts(22)[0]
    first = scheduler.start(request(prompt), 0)
    scheduler.step()
    scheduler.saves = [(block, 7 - index) for index, block in enumerate(first.blocks[:5])]
    scheduler.stop(first)
    scheduler.step()  # without rows
    assert first.output == oracle.greedy(prompt, 1)
    scheduler.executor.close()

    heir = Scheduler(make(attention_backend=backend, kv_arena_fd=arena.fd), seed=3)
    # One step brings back five blocks, saves one of them anew into a slot that it also reads, and copies from another.
    blocks = [heir.free.pop() for _ in range(5)]
    heir.loads = [(7 - index, block) for index, block in enumerate(blocks)]
    target = heir.free.pop()
    heir.copies = [(blocks[4], target, 3)]
    back = heir.start(request(prompt), 0, computed=20, blocks=blocks)
    fork = heir.start(request([*prompt[:19], 5, 6]), 1, computed=19, blocks=[*blocks[:4], target])
    while min(len(back.output), len(fork.output)) < 6:
        heir.step()
    assert back.output[:6] == oracle.greedy(prompt, 6)
    assert fork.output[:6] == oracle.greedy(fork.prompt, 6)
    arena.close()


def test_a_block_is_saved_before_the_step_that_takes_it_writes_it(
    oracle: Oracle, make: Callable[..., ModelRunner]
) -> None:
    arena = HostArena()
    scheduler = Scheduler(make(kv_arena_fd=arena.fd))
    handshake = scheduler.executor.handshake
    arena.set_size(3, handshake.kv_bytes // handshake.blocks)
    one, two = prompts(9, 13)
    first = scheduler.start(request(one), 0)
    scheduler.step()
    scheduler.saves = [(first.blocks[0], 2), (first.blocks[1], 0)]
    scheduler.stop(first)
    taken = scheduler.start(request(two), 1)
    scheduler.free += [first.blocks[1], first.blocks[0]]  # handed out next
    scheduler.step()
    assert set(taken.blocks) >= set(first.blocks[:2])
    blocks = [scheduler.free.pop(0) for _ in range(2)]
    scheduler.loads = [(2, blocks[0]), (0, blocks[1])]
    back = scheduler.start(request(one), 0, computed=8, blocks=blocks)
    scheduler.step()
    assert back.output == oracle.greedy(one, 1)
    arena.close()


def test_moves_without_an_arena_or_beyond_it_fail_their_step(make: Callable[..., ModelRunner]) -> None:
    moves = Step(1, 1, EMPTY, EMPTY, saves=np.array([[1, 3]], dtype=np.int32))
    with pytest.raises(ProtocolError, match="no arena"):
        make().execute(moves)
    arena = HostArena()
    executor = make(kv_arena_fd=arena.fd)
    with pytest.raises(ProtocolError, match="not a host arena"):
        executor.execute(moves)
    arena.set_size(3, executor.handshake.kv_bytes // executor.handshake.blocks)
    with pytest.raises(ProtocolError, match="the arena has 3"):
        executor.execute(moves)
    arena.close()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, replace(GREEDY, prompt_logprobs=2)], ids=str)
def test_a_row_with_nan_fails_alone_and_its_blocks_serve_the_next(
    oracle: Oracle, make: Callable[..., ModelRunner], sampling: SamplingParams
) -> None:
    scheduler = Scheduler(make())
    healthy, poisoned = prompts(12, 9)
    one = scheduler.start(request(healthy), 0)
    sick = scheduler.start(request([*poisoned, NAN_TOKEN, 3, 4], sampling), 1)
    done = scheduler.step()
    assert [row for row, _ in done.failed] == [1]
    assert "not numbers" in str(sick.failed)
    assert done.rows.tolist() == [0]
    # A step that was in flight still names the row: it is passed over.
    still = scheduler.executor.execute(Step(2, 1, np.array([1], dtype=np.int32), np.array([1], dtype=np.int32)))
    assert (len(still.rows), still.failed) == (0, ())
    scheduler.number = 2
    scheduler.stop(sick)
    heir = scheduler.start(request(prompts(25)[0]), 1)
    scheduler.run(8)
    assert set(heir.blocks) & set(sick.blocks)
    assert one.output == oracle.greedy(healthy, 8)
    assert heir.output == oracle.greedy(heir.prompt, 8)


def test_ids_outside_the_vocabulary_fail_their_row_alone(oracle: Oracle, make: Callable[..., ModelRunner]) -> None:
    scheduler = Scheduler(make())
    prompt = prompts(8)[0]
    one = scheduler.start(request(prompt), 0)
    bad = [
        scheduler.start(request([1, VOCABULARY]), 1),
        scheduler.start(request([-1]), 2),
        scheduler.start(request([1], SamplingParams(allowed_token_ids=(VOCABULARY,))), 3),
    ]
    done = scheduler.step()
    assert sorted(row for row, _ in done.failed) == [1, 2, 3]
    assert all("outside the vocabulary" in str(sick.failed) for sick in bad)
    assert one.output == oracle.greedy(prompt, 1)


def test_a_row_whose_mask_is_late_computes_its_last_token_again_and_others_go_on(
    oracle: Oracle, make: Callable[..., ModelRunner]
) -> None:
    executor = make()
    words = [bytes([1 + number % 8, number]) for number in range(VOCABULARY)]
    executor.learn(LearnVocabulary(b"".join(words), np.full(VOCABULARY, 2, dtype=np.int32)))
    anything = Constraint(b"anything", network(star(byte((0, 255)))).to_bytes())
    executor.learn(LearnGrammar(anything))
    grammars = executor._sampler.grammars
    calls = 0

    def late_twice_of_three(numbers: Items[int], *, have_company: bool, has_waited: bool) -> list[Allowed | str | None]:
        nonlocal calls
        calls += 1
        assert (have_company, has_waited) == (True, False)
        answers = Grammars.allowed(grammars, numbers, have_company=False)
        return answers if calls % 3 == 0 else [None] * len(answers)

    scheduler = Scheduler(executor)
    told, free = (request(prompt) for prompt in prompts(9, 13))
    told.constraint = Constraint(anything.digest, b"")
    scheduler.start(told, 0)
    scheduler.start(free, 1)
    with patch.object(grammars, "allowed", late_twice_of_three):
        late = [scheduler.step().late for _ in range(18)]
    assert late == [(0,), (0,), ()] * 6
    assert told.output == oracle.greedy(told.prompt, 6)
    assert free.output == oracle.greedy(free.prompt, 18)


def test_rows_of_other_slices_are_company_and_a_step_waits_for_masks_once(
    oracle: Oracle, make: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "LOGITS_BYTES", 4 * VOCABULARY * 2)
    executor = make()
    words = [bytes([1 + number % 8, number]) for number in range(VOCABULARY)]
    executor.learn(LearnVocabulary(b"".join(words), np.full(VOCABULARY, 2, dtype=np.int32)))
    anything = Constraint(b"anything", network(star(byte((0, 255)))).to_bytes())
    executor.learn(LearnGrammar(anything))
    scheduler = Scheduler(executor)
    requests = [request(prompt) for prompt in prompts(3, 4, 5, 6, 7)]
    for row, one in enumerate(requests):
        one.constraint = Constraint(anything.digest, b"") if row < 4 else None
        scheduler.start(one, row)
    asked = []

    def late(numbers: Items[int], *, have_company: bool, has_waited: bool) -> list[None]:
        asked.append((tuple(numbers), have_company, has_waited))
        return [None] * len(numbers)

    with patch.object(executor._sampler.grammars, "allowed", late):
        assert scheduler.step().late == (0, 1, 2, 3)
        scheduler.stop(requests.pop())
        assert scheduler.step().late == (0, 1, 2, 3)
    with_another = [((0, 1), True, False), ((2, 3), True, True)]
    alone = [((0, 1), True, False), ((2, 3), False, True)]
    assert asked == with_another + alone
    scheduler.run(6)
    for one in requests:
        assert one.output == oracle.greedy(one.prompt, 6)


@pytest.mark.parametrize("chunk", [1, 7, 48])
@pytest.mark.parametrize("slice_positions", [1, 5, 1000])
def test_prompt_logprobs_are_transformers_whatever_the_chunks_and_slices(
    oracle: Oracle,
    make: Callable[..., ModelRunner],
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    slice_positions: int,
) -> None:
    monkeypatch.setattr(model_runner, "LOGITS_BYTES", 4 * VOCABULARY * slice_positions)
    scheduler = Scheduler(make())
    prompt, other = prompts(23, 11)
    one = scheduler.start(request(prompt, replace(GREEDY, prompt_logprobs=3, logprobs=1)), 0)
    scheduler.start(request(other), 1)
    scheduler.run(3, chunk=chunk)
    exact = torch.log_softmax(oracle.logits(prompt + one.output).double(), dim=-1)[:, :]
    tokens = np.concatenate([entry.tokens for entry in one.prompt_logprobs])
    assert tokens.tolist() == prompt[1:]
    ends = [entry.start + len(entry.tokens) for entry in one.prompt_logprobs]
    assert [entry.start for entry in one.prompt_logprobs] == [1, *ends[:-1]]
    values = np.concatenate([entry.logprobs.token_logprobs for entry in one.prompt_logprobs])
    np.testing.assert_allclose(values, exact[range(22), prompt[1:]], atol=2e-5)
    top_ids = np.concatenate([entry.logprobs.top_ids for entry in one.prompt_logprobs])
    assert top_ids.tolist() == exact[:22].topk(3).indices.tolist()
    outputs = [value for value, _ in one.columns]
    np.testing.assert_allclose(outputs, exact[range(22, 25), one.output], atol=2e-5)
    assert [rank for _, rank in one.columns] == [1, 1, 1]


def test_a_request_that_resumes_after_its_first_token_is_not_told_of_its_prompt_again(
    make: Callable[..., ModelRunner],
) -> None:
    scheduler = Scheduler(make())
    one = scheduler.start(request(prompts(9)[0], replace(GREEDY, prompt_logprobs=1)), 0)
    scheduler.step()
    scheduler.stop(one)
    scheduler.start(one, 3)
    scheduler.run(4)
    assert [entry.start for entry in one.prompt_logprobs] == [1]


def test_a_prompt_whose_logprobs_were_not_asked_for_has_none(make: Callable[..., ModelRunner]) -> None:
    scheduler = Scheduler(make())
    scheduler.start(request(prompts(5)[0]), 0)
    done = scheduler.step()
    assert (done.prompt_logprobs, done.logprobs) == ((), None)
    assert done.elapsed_us > 0


def test_a_greater_epoch_starts_with_no_rows_and_an_older_one_is_refused(
    oracle: Oracle, make: Callable[..., ModelRunner]
) -> None:
    scheduler = Scheduler(make())
    one = scheduler.start(request(prompts(9)[0]), 0)
    for _ in range(4):
        scheduler.step()
    scheduler.living, scheduler.epoch = [], 5
    scheduler.start(one, 0)
    scheduler.run(10)
    assert one.output == oracle.greedy(one.prompt, 10)
    with pytest.raises(ProtocolError, match="epoch 4"):
        scheduler.executor.execute(Step(99, 4, np.array([0], dtype=np.int32), np.array([1], dtype=np.int32)))


def test_what_this_executor_does_not_do_is_refused_by_name(make: Callable[..., ModelRunner]) -> None:
    executor = make()
    none = np.empty(0, dtype=np.int32)
    tokens = np.array([1], dtype=np.int32).tobytes()
    adapted = NewRow(0, RequestId(0), tokens, 1, 0, (tokens,), GREEDY, 0, adapter_slot=2)
    with pytest.raises(ProtocolError, match="adapter slot 2"):
        executor.execute(Step(1, 1, none, none, added=(adapted,)))


def test_known_tokens_do_not_move_when_the_forward_pass_raises(
    oracle: Oracle, make: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(make())
    one = scheduler.start(request(prompts(9)[0]), 0)
    scheduler.step()

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(scheduler.executor._model, "forward", broken)
        with pytest.raises(RuntimeError, match="out of luck"):
            scheduler.step()
    scheduler.fresh, scheduler.removed = [], []
    scheduler.run(5)  # the same rows: had anything moved, this would not fit or not agree
    assert one.output == oracle.greedy(one.prompt, 5)


def test_the_handshake_tells_what_was_built(make: Callable[..., ModelRunner]) -> None:
    shake = make().handshake
    assert (shake.blocks, shake.block_size, shake.max_model_len, shake.vocab_size) == (120, 4, CONTEXT, VOCABULARY)
    assert (shake.dtype, shake.kv_dtype, shake.attention_backend) == ("float32", "float32", "cpu")
    assert [(group.kind, group.window, group.layers) for group in shake.groups] == [("full", 0, 3)]
    assert shake.kv_bytes == 120 * 4 * 2 * (3 * 2 * 8) * 4  # blocks, tokens, keys and values, numbers, bytes
    assert shake.fingerprint == make(num_kv_blocks=60, max_num_seqs=2).handshake.fingerprint
    narrow = make(kv_cache_dtype="bfloat16").handshake
    assert narrow.kv_dtype == "bfloat16"
    others = {
        narrow.fingerprint,
        make(dtype="bfloat16").handshake.fingerprint,
        make(block_size=8).handshake.fingerprint,
    }
    assert len(others | {shake.fingerprint}) == 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_run_and_stay_close(oracle: Oracle, make: Callable[..., ModelRunner], dtype: str) -> None:
    scheduler = Scheduler(make(dtype=dtype))
    prompt = prompts(15)[0]
    one = scheduler.start(request(prompt, replace(GREEDY, prompt_logprobs=0)), 0)
    scheduler.run(2)
    exact = torch.log_softmax(oracle.logits(prompt), dim=-1)[range(14), prompt[1:]].numpy()
    found = one.prompt_logprobs[0].logprobs.token_logprobs
    assert np.abs(found - exact).mean() < 0.5
    assert found.dtype == np.float32


def test_the_default_pool_is_bounded_by_what_the_rows_can_fill(make: Callable[..., ModelRunner]) -> None:
    assert make(num_kv_blocks=None).handshake.blocks == 6 * 24 + 1
    assert make(num_kv_blocks=None, max_model_len=None).handshake.max_model_len == CONTEXT
    assert make(num_kv_blocks=11, max_model_len=None).handshake.max_model_len == 40


def test_what_cannot_be_loaded_is_told_in_one_line(
    make: Callable[..., ModelRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError):
        make(model_path=str(tmp_path / "absent.gguf"))
    with pytest.raises(UsageError, match="--max-model-len 97"):
        make(max_model_len=97)
    with pytest.raises(UsageError, match="nowhere"):
        make(attention_backend="nowhere")
    monkeypatch.setattr(runner, "read_memory", lambda: machine.Memory(1 << 30, 1 << 20, None))
    with pytest.raises(UsageError, match=r"too little memory: .* are available; lower --num-kv-blocks or"):
        make()
    with pytest.raises(UsageError, match=r"too little memory: .* are available; lower --max-model-len") as told:
        make(num_kv_blocks=None)
    assert "\n" not in str(told.value)


def test_rows_beyond_one_slice_of_logits_are_sampled_as_in_one(
    oracle: Oracle, make: Callable[..., ModelRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "LOGITS_BYTES", 4 * VOCABULARY * 2)
    scheduler = Scheduler(make())
    requests = [scheduler.start(request(prompt), row) for row, prompt in enumerate(prompts(3, 4, 5, 6, 7))]
    scheduler.run(6)
    for one in requests:
        assert one.output == oracle.greedy(one.prompt, 6)
