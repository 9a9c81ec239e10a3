"""The encoder's runner on a tiny random BERT: vectors are transformers', however steps cut prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

from asyncpage.core.pooling import POOLED
from asyncpage.errors import ProtocolError, UsageError
from asyncpage.executor import memory
from asyncpage.executor.encoder_runner import EncoderRunner
from asyncpage.executor.runner import load_runner
from asyncpage.messages import EMPTY, Load, NewRow, Pooling, RequestId, Step, StepDone

VOCABULARY, CONTEXT, NAN_TOKEN = 83, 40, 82
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "device": "cpu",
    "max_model_len": None,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 48,
    "block_size": 4,
    "kv_cache_bytes": None,
    "num_kv_blocks": None,
    "attention_backend": "auto",
    "cpu_threads": 1,
}
MEAN = Pooling("mean")


@dataclass
class Oracle:
    path: Path
    model: BertModel
    known: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def vector(self, prompt: Sequence[int], kind: str = "mean") -> Any:
        key = tuple(prompt)
        if key not in self.known:
            with torch.inference_mode():
                self.known[key] = self.model(torch.tensor([prompt])).last_hidden_state[0].double()
        states = self.known[key]
        pooled = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[kind]
        return (pooled / pooled.norm()).numpy()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    torch.manual_seed(11)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    model.embeddings.word_embeddings.weight.data[NAN_TOKEN] = torch.nan
    path = tmp_path_factory.mktemp("bert")
    model.save_pretrained(path)
    return Oracle(path, model)


Make = Callable[..., EncoderRunner]


@pytest.fixture(scope="module")
def make(oracle: Oracle) -> Make:
    def make(**changes: Any) -> EncoderRunner:
        made = load_runner(Load({**SETTINGS, "model_path": str(oracle.path), **changes}))
        assert isinstance(made, EncoderRunner)
        return made

    return make


def new(row: int, prompt: Sequence[int], pooling: Pooling | None = MEAN) -> NewRow:
    table = np.arange(1, 1 - (-len(prompt) // 4), dtype=np.int32).tobytes()
    tokens = np.array(prompt, dtype=np.int32).tobytes()
    return NewRow(row, RequestId(row), tokens, len(prompt), 0, (table,), POOLED, 0, pooling=pooling)


def step(number: int, counts: dict[int, int], *added: NewRow, epoch: int = 1, **more: Any) -> Step:
    rows = np.array(list(counts), dtype=np.int32)
    return Step(number, epoch, rows, np.array(list(counts.values()), dtype=np.int32), added=added, **more)


def vectors(done: StepDone) -> dict[int, Any]:
    return {part.row: np.frombuffer(part.embedding, dtype="<f4") for part in done.pooled}


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, CONTEXT), min_size=1, max_size=6),
    kinds=st.lists(st.sampled_from(("mean", "last", "cls")), min_size=6, max_size=6),
    dice=st.randoms(use_true_random=False),
)
def test_vectors_are_transformers_however_steps_cut_and_mix_the_prompts(
    make: Make, oracle: Oracle, lengths: list[int], kinds: list[Any], dice: Any
) -> None:
    runner = make()
    prompts = [[dice.randrange(NAN_TOKEN) for _ in range(length)] for length in lengths]
    left = dict(enumerate(lengths))
    added = tuple(new(row, prompt, Pooling(kinds[row])) for row, prompt in enumerate(prompts))
    found: dict[int, Any] = {}
    number = 0
    while left:
        number, budget, counts = number + 1, 48, {}
        for row in dice.sample(sorted(left), dice.randint(1, len(left))):
            if budget:
                counts[row] = dice.randint(1, min(budget, left[row]))
                budget -= counts[row]
        done = runner.execute(step(number, counts, *added))
        added = ()
        assert (len(done.rows), len(done.tokens), done.failed) == (0, 0, ())
        left = {row: rest - counts.get(row, 0) for row, rest in left.items() if rest > counts.get(row, 0)}
        new_ones = vectors(done)
        assert not new_ones.keys() & (found.keys() | left.keys())
        found |= new_ones
    assert found.keys() == set(range(len(prompts)))
    for row, prompt in enumerate(prompts):
        np.testing.assert_allclose(found[row], oracle.vector(prompt, kinds[row]), atol=1e-5)


def test_the_handshake_tells_of_an_encoder(make: Make) -> None:
    told = make().handshake
    assert (told.kind, told.hidden_size, told.max_model_len, told.vocab_size) == ("encoder", 32, CONTEXT, VOCABULARY)
    assert told.kv_bytes == 0
    assert told.blocks == 1 + 6 * 10  # every row has room for the longest prompt, so nobody is preempted
    assert make(dtype="bfloat16").handshake.fingerprint != told.fingerprint == make().handshake.fingerprint


def test_rows_fail_alone(make: Make, oracle: Oracle) -> None:
    runner = make()
    bad = [new(1, [3, VOCABULARY]), new(2, [3, -1]), new(3, [4, 5], None), new(4, [4, NAN_TOKEN])]
    done = runner.execute(step(1, dict.fromkeys(range(5), 2), new(0, [7, 8]), *bad))
    reasons = dict(done.failed)
    assert reasons.keys() == {1, 2, 3, 4}
    assert "outside the vocabulary of 83" in reasons[1]
    assert "outside the vocabulary of 83" in reasons[2]
    assert "generates no text" in reasons[3]
    assert "not numbers" in reasons[4]
    np.testing.assert_allclose(vectors(done)[0], oracle.vector([7, 8]), atol=1e-5)


def test_a_row_that_was_preempted_or_whose_epoch_ended_begins_anew(make: Make, oracle: Oracle) -> None:
    runner, prompt = make(), list(range(9))
    runner.execute(step(1, {0: 5}, new(0, prompt)))
    gone = np.array([0], dtype=np.int32)
    assert runner.execute(step(2, {3: 8}, new(3, prompt), removed=gone)).pooled == ()
    done = runner.execute(step(3, {0: 9}, new(0, prompt), epoch=2))
    np.testing.assert_allclose(vectors(done)[0], oracle.vector(prompt), atol=1e-5)
    with pytest.raises(ProtocolError, match="came after epoch 2"):
        runner.execute(step(4, {}, epoch=1))


@pytest.mark.parametrize("name", ["copies", "saves", "loads"])
def test_a_step_that_moves_kv_is_refused(make: Make, name: str) -> None:
    column = np.array([[1, 2, 3][: 3 if name == "copies" else 2]], dtype=np.int32)
    with pytest.raises(ProtocolError, match="an encoder has none"):
        make().execute(replace(step(1, {}), **{name: column}))


def test_a_step_without_rows_says_so(make: Make) -> None:
    done = make().execute(step(1, {}))
    assert (done.number, done.epoch, done.pooled, done.failed) == (1, 1, (), ())
    assert done.rows is EMPTY


def test_too_little_memory_is_told_before_weights_are_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WORKING_BYTES", 1 << 60)
    with pytest.raises(UsageError, match=r"too little memory: 0\.00 GiB of weights"):
        make()


def test_a_type_of_weights_that_would_not_be_obeyed_is_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="--weights-dtype is for decoders"):
        make(weights_dtype="bfloat16")
    assert make(weights_dtype="float32").handshake.weights_dtype == "float32"
