"""Penalties: against a loop over the row's tokens."""

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.penalties import Penalties, asks

WIDTH = 90


def by_loop(logits: np.ndarray, prompt: list[int], output: list[int], sampling: SamplingParams) -> np.ndarray:
    changed = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        factor = sampling.repetition_penalty
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in set(output):
        changed[token] -= sampling.frequency_penalty * output.count(token)
        changed[token] -= sampling.presence_penalty
    return changed


SETTINGS = [
    SamplingParams(repetition_penalty=1.5),
    SamplingParams(repetition_penalty=0.5),
    SamplingParams(frequency_penalty=0.7),
    SamplingParams(presence_penalty=-1.25),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=-0.4, presence_penalty=0.9),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("brought", [0, 1, 40, 200])
def test_penalties_are_those_of_a_loop_however_the_tokens_came(sampling: SamplingParams, brought: int) -> None:
    generator = np.random.default_rng(brought)
    prompt = generator.integers(0, WIDTH, 30).tolist()
    output = generator.integers(0, WIDTH, 200).tolist()
    kept = Penalties(sampling, np.array(prompt + output[:brought], dtype=np.int32), len(prompt))
    for token in output[brought:]:
        kept.append(token)
    logits = generator.normal(0, 4, WIDTH).astype(np.float32)
    changed = torch.from_numpy(logits.copy())
    kept.apply(changed)
    np.testing.assert_allclose(changed.numpy(), by_loop(logits, prompt, output, sampling), rtol=1e-5, atol=1e-5)


def test_the_prompt_counts_for_repetition_only() -> None:
    prompt = np.array([1, 1, 1, 2], dtype=np.int32)
    logits = torch.tensor([1.0, 1.0, -1.0, 1.0])
    Penalties(SamplingParams(presence_penalty=1.0, frequency_penalty=1.0), prompt, 4).apply(logits)
    assert logits.tolist() == [1.0, 1.0, -1.0, 1.0]
    Penalties(SamplingParams(repetition_penalty=2.0), prompt, 4).apply(logits)
    assert logits.tolist() == [1.0, 0.5, -2.0, 1.0]


@pytest.mark.parametrize("factor", [1e-300, 1e-38, 100.0])
def test_no_penalty_makes_a_logit_that_is_not_a_number(factor: float) -> None:
    logits = torch.tensor([30.0, -30.0, 0.0, -torch.inf])
    Penalties(SamplingParams(repetition_penalty=factor), np.arange(4, dtype=np.int32), 4).apply(logits)
    assert not torch.isnan(logits).any()
    assert float(logits.max()) < torch.inf
    assert logits[3] == -torch.inf


def test_settings_that_change_nothing_are_not_asked_for() -> None:
    assert not asks(SamplingParams())
    assert all(asks(sampling) for sampling in SETTINGS)
