"""Log-probability columns: against a plain float64 computation."""

import numpy as np
import torch

from asyncpage.executor import logprobs

WIDTH = 700


def raw(positions: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(positions, WIDTH, generator=torch.Generator().manual_seed(seed)) * 3


def test_columns_are_those_of_a_float64_log_softmax() -> None:
    logits = raw(6)
    tokens = np.array([0, 699, 5, 300, 301, 17], dtype=np.int32)
    columns = logprobs.measure(torch.log_softmax(logits, dim=1), tokens, 4)
    exact = logits.double().numpy()
    exact = exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))
    order = np.argsort(-exact, axis=1, kind="stable")
    np.testing.assert_allclose(columns.token_logprobs, exact[np.arange(6), tokens], rtol=1e-6)
    assert columns.top_ids.tolist() == order[:, :4].tolist()
    np.testing.assert_allclose(columns.top_logprobs, np.take_along_axis(exact, order[:, :4], 1), rtol=1e-5)
    assert columns.ranks.tolist() == [order[i].tolist().index(token) + 1 for i, token in enumerate(tokens)]
    assert columns.ranks.dtype == columns.top_ids.dtype == np.int32
    assert columns.token_logprobs.dtype == columns.top_logprobs.dtype == np.float32


def test_the_chosen_token_has_the_identical_float_among_the_likely_ones() -> None:
    values = torch.log_softmax(raw(50), dim=1)
    tokens = values.argmax(dim=1).numpy().astype(np.int32)
    columns = logprobs.measure(values, tokens, 1)
    assert columns.top_ids[:, 0].tolist() == tokens.tolist()
    assert columns.token_logprobs.tobytes() == columns.top_logprobs[:, 0].tobytes()


def test_equals_rank_by_id_as_they_are_listed() -> None:
    values = torch.log_softmax(torch.zeros(3, 5), dim=1)
    columns = logprobs.measure(values, np.array([0, 2, 4], dtype=np.int32), 5)
    assert columns.ranks.tolist() == [1, 3, 5]
    assert columns.top_ids.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_no_likely_tokens_may_be_asked_for_and_never_more_than_there_are() -> None:
    values = torch.log_softmax(raw(2), dim=1)
    tokens = np.zeros(2, dtype=np.int32)
    assert logprobs.measure(values, tokens, 0).top_ids.shape == (2, 0)
    assert logprobs.measure(values[:, :3], tokens, 20).top_ids.shape == (2, 3)


def test_slices_joined_are_the_whole() -> None:
    values, tokens = torch.log_softmax(raw(9), dim=1), np.arange(9, dtype=np.int32)
    whole = logprobs.measure(values, tokens, 3)
    parts = [logprobs.measure(values[at : at + 4], tokens[at : at + 4], 3) for at in (0, 4, 8)]
    for name in ("token_logprobs", "ranks", "top_ids", "top_logprobs"):
        assert getattr(logprobs.join(parts), name).tobytes() == getattr(whole, name).tobytes()


def test_positions_that_nobody_asked_for_hold_no_token() -> None:
    values = torch.log_softmax(raw(1), dim=1)
    spread = logprobs.spread(logprobs.measure(values, np.array([3], dtype=np.int32), 2), np.array([1]), 3)
    assert spread.ranks[[0, 2]].tolist() == [0, 0]
    assert spread.top_ids[0].tolist() == [-1, -1]
    assert spread.ranks[1] > 0
    narrow = logprobs.join([spread, logprobs.blank(1, 0)])
    assert narrow.top_ids.shape == (4, 2)
    assert narrow.top_ids[3].tolist() == [-1, -1]
