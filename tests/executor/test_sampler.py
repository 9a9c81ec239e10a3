"""The sampler: its stages in order, its rows apart from one another."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor.sampler import Sampled, Sampler, join
from asyncpage.messages import NewRow, RequestId

CPU = torch.device("cpu")
WIDTH = 307


class Rows:
    """A sampler with rows, and what each of them knows."""

    def __init__(self, width: int = WIDTH) -> None:
        self.sampler = Sampler(width, CPU)
        self.known: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}

    def add(
        self,
        row: int,
        sampling: SamplingParams,
        prompt: Sequence[int] = (1, 2),
        output: Sequence[int] = (),
        ends: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
    ) -> "Rows":
        tokens = np.array([*prompt, *output], dtype=np.int32)
        seed = sampling.seed if sampling.seed is not None else row
        new = NewRow(
            row, RequestId(row), tokens.tobytes(), len(prompt), 0, (), sampling, seed, ends, bad_word_ids=bad_words
        )
        self.sampler.add(new, tokens)
        self.known[row], self.prompts[row] = tokens.tolist(), len(prompt)
        return self

    def remove(self, row: int) -> None:
        self.sampler.remove(row)
        del self.known[row]

    def step(self, logits: dict[int, torch.Tensor]) -> Sampled:
        rows = np.array(list(logits), dtype=np.int32)
        numbers = np.array([len(self.known[row]) - self.prompts[row] for row in logits])
        stacked = torch.stack([values.float() for values in logits.values()])
        done = self.sampler.sample(rows, numbers, stacked, lambda row: np.array(self.known[row], dtype=np.int32))
        kept = np.ones(len(rows), dtype=bool)
        kept[[index for index, _ in done.failed]] = False
        self.sampler.append(rows[kept], done.tokens[kept])
        for row, token in zip(rows[kept].tolist(), done.tokens[kept].tolist(), strict=True):
            self.known[row].append(token)
        return done


def model(known: Sequence[int], width: int = WIDTH) -> torch.Tensor:
    """Logits that depend on what a row knows, as a model's do."""
    generator = torch.Generator().manual_seed(hash(tuple(known)) % 2**31)
    return torch.randn(width, generator=generator) * 2


def answer(rows: Rows, row: int, others: Sequence[int], steps: int) -> list[int]:
    """Run `row` beside `others`; the output of `row`."""
    for _ in range(steps):
        rows.step({r: model(rows.known[r]) for r in (*others, row)})
    return rows.known[row][rows.prompts[row] :]


EVERYTHING = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    top_k=80,
    min_p=0.001,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.2,
    min_tokens=5,
    logit_bias=((7, 2.0),),
    logprobs=3,
    seed=42,
)
KINDS = [
    SamplingParams(temperature=0.0, seed=42),
    SamplingParams(seed=42),
    SamplingParams(temperature=0.6, top_p=0.9, seed=42),
    SamplingParams(temperature=0.0, repetition_penalty=1.4, seed=42),
    EVERYTHING,
]


@pytest.mark.parametrize("sampling", KINDS, ids=str)
def test_an_answer_is_the_same_alone_in_any_batch_and_after_moving_to_another_row(sampling: SamplingParams) -> None:
    alone = answer(Rows().add(0, sampling, ends=(3, 9), bad_words=((5, 6),)), 0, (), 12)

    crowd = Rows()
    for row, kind in enumerate(KINDS):
        crowd.add(row, kind)
    crowd.add(5, SamplingParams(temperature=1.3))
    crowd.add(9, sampling, ends=(3, 9), bad_words=((5, 6),))
    assert answer(crowd, 9, range(6), 12) == alone

    moved = Rows().add(3, sampling, ends=(3, 9), bad_words=((5, 6),))
    half = answer(moved, 3, (), 7)
    moved.remove(3)
    moved.add(3, EVERYTHING, prompt=(8, 8, 8))  # somebody else lives there in between
    moved.add(11, sampling, output=half, ends=(3, 9), bad_words=((5, 6),))
    assert answer(moved, 11, (3,), 5) == alone
    assert len(set(alone)) > 3


def test_seeds_differ_and_the_same_seed_repeats() -> None:
    answers = [tuple(answer(Rows().add(0, SamplingParams(seed=s)), 0, (), 12)) for s in (1, 2, 3, -4, 1)]
    assert len(set(answers)) == 4
    assert answers[0] == answers[4]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, top_p=0.1),
        SamplingParams(temperature=0.0, top_k=5, min_p=0.5, seed=3),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1e-300),
        SamplingParams(temperature=2.0, top_p=1e-9),
        SamplingParams(temperature=1.0, min_p=1.0, top_k=1),
        SamplingParams(temperature=0.0, logprobs=2),
    ],
    ids=str,
)
def test_among_equal_logits_greedy_choices_take_the_lowest_id(sampling: SamplingParams) -> None:
    logits = torch.zeros(WIDTH)
    logits[[50, 40, 300]] = 2.5
    for seed in range(25):
        rows = Rows().add(0, sampling, prompt=(seed,))
        assert rows.step({0: logits}).tokens.tolist() == [40]


def test_stages_come_in_their_order() -> None:
    """A bias is seen by the repetition penalty, which is seen by the frequency penalty; raw logprobs see none."""
    sampling = SamplingParams(
        temperature=0.0,
        logit_bias=((5, 6.0),),
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        presence_penalty=0.5,
        logprobs=5,
    )
    logits = torch.full((WIDTH,), -10.0)
    logits[[5, 6, 7]] = torch.tensor([1.0, 2.4, 2.2])
    rows = Rows().add(0, sampling, prompt=(5,), output=(6,))
    # 5: (1 + 6) / 2 = 3.5 before anything counted against output; 6: 2.4 / 2 - 1 - 0.5 = -0.3; 7 untouched: 2.2.
    done = rows.step({0: logits})
    assert done.tokens.tolist() == [5]
    assert done.logprobs is not None
    exact = torch.log_softmax(logits.double(), dim=0)
    assert done.logprobs.top_ids[0, :3].tolist() == [6, 7, 5]
    np.testing.assert_allclose(done.logprobs.top_logprobs[0], exact[[6, 7, 5, 0, 1]], rtol=1e-5)
    assert done.logprobs.ranks.tolist() == [3]
    # Now 5 was put out once: 3.5 - 1 - 0.5 = 2.0, and 7 wins.
    assert rows.step({0: logits}).tokens.tolist() == [7]


def test_rows_without_numbers_fail_alone() -> None:
    rows = Rows()
    plain, drawn, asking, healthy = 0, 1, 2, 3
    rows.add(plain, SamplingParams(temperature=0.0)).add(drawn, SamplingParams())
    rows.add(asking, SamplingParams(temperature=0.0, logprobs=2)).add(healthy, SamplingParams(seed=5, logprobs=1))
    alone = Rows().add(healthy, SamplingParams(seed=5, logprobs=1)).step({healthy: model((1,))})
    nan = model((1,))
    nan[100] = torch.nan
    done = rows.step({plain: nan, drawn: torch.full((WIDTH,), -torch.inf), asking: nan, healthy: model((1,))})
    assert [index for index, _ in done.failed] == [0, 1, 2]
    assert all("not numbers" in reason for _, reason in done.failed)
    assert done.tokens[3] == alone.tokens[0]
    assert done.logprobs is not None
    assert alone.logprobs is not None
    assert done.logprobs.token_logprobs[3] == alone.logprobs.token_logprobs[0]


def test_greedy_rows_alone_notice_rows_without_numbers_too() -> None:
    rows = Rows().add(0, SamplingParams(temperature=0.0)).add(1, SamplingParams(temperature=0.0))
    logits = model((4,))
    expected = int(logits.argmax())
    done = rows.step({0: torch.full((WIDTH,), torch.nan), 1: logits})
    assert [index for index, _ in done.failed] == [0]
    assert done.tokens[1] == expected


def test_infinite_logits_are_certain_and_share_among_equals() -> None:
    logits = model((6,))
    logits[[9, 200]] = torch.inf
    rows = Rows()
    for row in range(40):
        rows.add(row, SamplingParams(logprobs=2, seed=row))
    rows.add(40, SamplingParams(temperature=0.0))
    done = rows.step(dict.fromkeys(range(41), logits))
    assert not done.failed
    assert set(done.tokens[:40].tolist()) == {9, 200}
    assert done.tokens[40] == 9
    assert done.logprobs is not None
    np.testing.assert_allclose(done.logprobs.token_logprobs[:40], np.log(0.5), rtol=1e-6)
    assert done.logprobs.top_ids[0].tolist() == [9, 200]


def test_a_row_whose_settings_forbid_every_token_fails_alone_with_their_names() -> None:
    rows = Rows().add(0, SamplingParams(allowed_token_ids=(3,), min_tokens=1), ends=(3,))
    rows.add(1, SamplingParams(temperature=0.0))
    done = rows.step({0: model((1,)), 1: model((2,))})
    assert [index for index, _ in done.failed] == [0]
    assert "allowed_token_ids" in done.failed[0][1]
    assert done.tokens[1] == int(model((2,)).argmax())


def test_only_rows_that_ask_have_logprobs_and_the_widest_ask_decides() -> None:
    rows = Rows().add(0, SamplingParams(temperature=0.0, logprobs=1)).add(1, SamplingParams(temperature=0.0))
    rows.add(2, SamplingParams(temperature=0.0, logprobs=4))
    done = rows.step({row: model((row,)) for row in range(3)})
    assert done.logprobs is not None
    assert done.logprobs.top_ids.shape == (3, 4)
    assert done.logprobs.ranks.tolist() == [1, 0, 1]
    assert done.logprobs.top_ids[[0, 2], 0].tolist() == done.tokens[[0, 2]].tolist()
    nobody = Rows().add(1, SamplingParams(temperature=0.0)).step({1: model((1,))})
    assert nobody.logprobs is None


def test_a_row_that_comes_after_another_inherits_nothing() -> None:
    rows = Rows().add(0, EVERYTHING, ends=(1,))
    rows.remove(0)
    rows.add(0, SamplingParams(temperature=0.0))
    logits = model((3,))
    done = rows.step({0: logits})
    assert done.tokens.tolist() == [int(logits.argmax())]
    assert done.logprobs is None


def test_extreme_but_legal_settings_draw_a_token() -> None:
    rows = Rows()
    kinds = [
        SamplingParams(temperature=2.0, top_p=1e-30, min_p=1e-30),
        SamplingParams(temperature=1.1e-5),
        SamplingParams(repetition_penalty=1e-300),
        SamplingParams(repetition_penalty=100.0, frequency_penalty=2.0, logit_bias=((1, -100.0), (2, 100.0))),
        SamplingParams(top_k=2**31 - 1, top_p=1 - 1e-12),
    ]
    for row, sampling in enumerate(kinds):
        rows.add(row, sampling, prompt=range(40))
    for scale in (1e-30, 1.0, 1e4, 1e30):
        done = rows.step({row: model((row,)) * scale for row in range(len(kinds))})
        assert not done.failed
        assert ((done.tokens >= 0) & (done.tokens < WIDTH)).all()


@pytest.mark.parametrize(
    ("sampling", "columns", "word"),
    [
        (SamplingParams(allowed_token_ids=(1, WIDTH)), {}, "allowed_token_ids"),
        (SamplingParams(logit_bias=((-1, 2.0),)), {}, "logit_bias"),
        (SamplingParams(), {"bad_word_ids": ((1, WIDTH + 5),)}, "bad_words"),
        (SamplingParams(min_tokens=1), {"end_token_ids": (WIDTH,)}, "end_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(sampling: SamplingParams, columns: dict, word: str) -> None:
    new = NewRow(0, RequestId(0), b"", 1, 0, (), sampling, 0, **columns)
    assert word in str(Sampler(WIDTH, CPU).refusal(new))


def test_slices_of_a_batch_joined_are_the_batch() -> None:
    kinds = [SamplingParams(seed=1), SamplingParams(temperature=0.0, logprobs=2), EVERYTHING, SamplingParams(seed=3)]
    batches = []
    for _ in range(2):
        rows = Rows()
        for row, sampling in enumerate(kinds):
            rows.add(row, sampling)
        batches.append(rows)
    logits = {row: model((row,)) for row in range(4)}
    logits[3][5] = torch.nan
    whole = batches[0].step(logits)
    parts = join([batches[1].step({row: logits[row] for row in half}) for half in ((0, 1), (2, 3))])
    assert parts.tokens[:3].tolist() == whole.tokens[:3].tolist()
    assert parts.failed == whole.failed
    assert parts.logprobs is not None
    assert whole.logprobs is not None
    assert parts.logprobs.ranks.tolist() == whole.logprobs.ranks.tolist()
    assert parts.logprobs.top_ids[2].tolist() == whole.logprobs.top_ids[2].tolist()
    assert parts.logprobs.top_ids[1, :2].tolist() == whole.logprobs.top_ids[1, :2].tolist()  # it asked for two
