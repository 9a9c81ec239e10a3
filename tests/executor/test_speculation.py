"""A runner with drafts: whatever they are, the tokens are those of a runner without, which tests beside this compare
with transformers; and their distribution is that of the model, which transformers tells here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ProtocolError
from asyncpage.executor import model_runner, runner
from asyncpage.executor.batch import PersistentBatch
from asyncpage.executor.grammar import Allowed, Grammars
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.runner import load_runner
from asyncpage.executor.speculation.proposer import Drafts
from asyncpage.messages import Constraint, Int32, LearnGrammar, LearnVocabulary, Load, NewRow
from tests.executor.near_end import BLOCK_SIZE, Request, Scheduler, request
from tests.grammar.networks import byte, network, star

VOCABULARY, CONTEXT = 199, 96
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "device": "cpu",
    "max_model_len": CONTEXT,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 160,
    "block_size": BLOCK_SIZE,
    "kv_cache_bytes": None,
    "num_kv_blocks": 500,
    "attention_backend": "cpu",
    "grammar_backend": "builtin",
    "cpu_threads": 1,
    "seed": 0,
}
Make = Callable[..., ModelRunner]
LETTERS = Constraint(b"letters", network(star(byte((97, 110)))).to_bytes())


class Guesser:
    """Knows what requests will say, and drafts that well or ill, by turns where it says so."""

    def __init__(self, how: str, answers: Sequence[Sequence[int]]) -> None:
        self.how = how
        self.answers = answers
        self.turn = 0
        self.random = np.random.default_rng(7)

    caches = ()

    def clear(self) -> None: ...

    def add(self, new: NewRow) -> None: ...

    def remove(self, row: int) -> None: ...

    def observe(self, *shown: object) -> None: ...

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        own = [self._of(batch.known_of(int(row)).tolist(), int(most)) for row, most in zip(rows, asked, strict=True)]
        found = np.array([len(drafts) for drafts in own], dtype=np.int32)
        return Drafts(found, np.array([token for drafts in own for token in drafts], dtype=np.int32))

    def _of(self, known: list[int], most: int) -> list[int]:
        self.turn += 1
        answer = next((answer for answer in self.answers if list(answer[: len(known)]) == known), known)
        right = list(answer[len(known) : len(known) + most])
        wrong = [(token + 1) % VOCABULARY for token in right]
        match self.how:
            case "good":
                return right
            case "wrong":
                return wrong
            case "random":
                return self.random.integers(0, VOCABULARY, most).tolist()
            case "mixed":
                middle = len(right) // 2
                return [right, [*right[:middle], *wrong[middle:]], right[:middle], wrong, []][self.turn % 5]
        raise AssertionError(self.how)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    torch.manual_seed(6)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.25,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).float().eval()
    path = tmp_path_factory.mktemp("tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own, about itself
        model.save_pretrained(path)
    return path, model


@pytest.fixture(scope="module")
def make(oracle: tuple[Path, LlamaForCausalLM]) -> Make:
    def build(proposer: Any = None, most: int = 0, **changes: Any) -> ModelRunner:
        settings = {**SETTINGS, "model_path": str(oracle[0]), "most_drafts": most, **changes}
        with patch.object(runner, "make_proposer", lambda *given: proposer):
            executor = load_runner(Load(settings))
        words = [bytes([number % 256]) for number in range(VOCABULARY)]
        executor.learn(LearnVocabulary(b"".join(words), np.ones(VOCABULARY, dtype=np.int32)))
        executor.learn(LearnGrammar(LETTERS))
        return executor

    return build


DRAWN: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "min_p and top_k": {"temperature": 1.5, "min_p": 0.02, "top_k": 40},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": 0.4},
    "greedy penalties": {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.3},
    "bias": {"temperature": 0.9, "logit_bias": ((5, 3.0), (6, -100.0))},
    "allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(0, VOCABULARY, 3))},
    "logprobs": {"temperature": 0.7, "logprobs": 3},
    "greedy logprobs": {"temperature": 0.0, "logprobs": 0},
}
OUTPUTS = 26


def requests() -> list[Request]:
    """One of every kind; two may end early, two are held to a limit, one follows a grammar."""
    random = np.random.default_rng(11)

    def prompt(length: int) -> list[int]:
        return random.integers(0, VOCABULARY, length).tolist()

    made = [request(prompt(3 + 4 * at), SamplingParams(**fields), seed=at) for at, fields in enumerate(DRAWN.values())]
    made += [request(prompt(9)), request(prompt(40), most=7), request(prompt(5), most=1)]
    made += [request(prompt(12), SamplingParams(temperature=1.2, min_tokens=9), ends=tuple(range(0, VOCABULARY, 5)))]
    made += [request(prompt(6), ends=tuple(range(0, VOCABULARY, 9)))]
    made += [request(prompt(8), bad_words=((7,), (3, 4), tuple(range(90, 92))))]
    made += [request(prompt(7), SamplingParams(temperature=1.0), constraint=Constraint(LETTERS.digest, b""))]
    return made


def run(executor: ModelRunner, made: list[Request], drafts: int) -> list[Request]:
    """They come one after the other; one is preempted, and later the executor is told to begin anew."""
    scheduler = Scheduler(executor)

    def step(chunk: int) -> None:
        scheduler.step(chunk=chunk, budget=150, drafts=drafts)
        for gone in [one for one in scheduler.living if one.is_over]:
            scheduler.stop(gone)

    for row, one in enumerate(made):
        scheduler.start(one, row)
        step(11)
    preempted = scheduler.living[0]
    scheduler.stop(preempted)
    step(11)
    scheduler.start(preempted, 17)
    step(5)
    rest = [one for one in scheduler.living if len(one.output) < OUTPUTS]
    scheduler = Scheduler(executor, seed=1)
    scheduler.epoch = 2
    for row, one in enumerate(rest):
        scheduler.start(one, row)
    scheduler.run(OUTPUTS, budget=150, drafts=drafts)
    return made


@pytest.fixture(scope="module")
def plain(make: Make) -> list[Request]:
    """Without drafts."""
    return run(make(), requests(), 0)


def test_requests_without_drafts_try_every_kind_of_end(plain: list[Request]) -> None:
    assert all(one.failed is None for one in plain)
    ended = [one for one in plain if one.ends]
    assert [one.output[-1] in one.ends for one in ended] == [True, True]
    assert len(ended[0].output) > 9
    assert {len(one.output) for one in plain} >= {1, 7}


@pytest.mark.parametrize("how", ["good", "wrong", "random", "mixed"])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_tokens_and_logprobs_are_those_without_drafts(make: Make, plain: list[Request], how: str, most: int) -> None:
    guesser = Guesser(how, [one.known for one in plain])
    made = run(make(guesser, most), requests(), most)
    for one, other in zip(made, plain, strict=True):
        length = min(OUTPUTS, len(one.output), len(other.output))
        assert one.output[:length] == other.output[:length]
        if length < OUTPUTS:
            assert one.is_over
            assert one.output == other.output
        if one.sampling.logprobs is not None:
            assert len(one.columns) == len(one.output)
            numbers, expected = (np.array(columns[:length]) for columns in (one.columns, other.columns))
            np.testing.assert_allclose(numbers[:, 0], expected[:, 0], atol=1e-4)
            assert numbers[:, 1].tolist() == expected[:, 1].tolist()
    assert sum(one.drafted for one in made) > 20


@pytest.mark.long
@pytest.mark.parametrize("how", ["good", "wrong", "random"])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_greedy_answers_to_five_hundred_prompts_are_those_without_drafts(make: Make, how: str, most: int) -> None:
    def all_answers(executor: ModelRunner, drafts: int) -> list[Request]:
        """Sixteen at a time; every third prompt repeats itself."""
        random = np.random.default_rng(23)
        found: list[Request] = []
        scheduler = Scheduler(executor)
        for _ in range(0, 500, 16):
            for row in range(min(16, 500 - len(found))):
                piece = random.integers(0, VOCABULARY, 3 + row).tolist()
                found.append(scheduler.start(request(piece * 3 if row % 3 == 0 else piece, most=30), row))
            scheduler.run(30, chunk=9, budget=150, drafts=drafts)
        return found

    plain = all_answers(make(), 0)
    drafted = all_answers(make(Guesser(how, [one.known for one in plain]), most), most)
    assert [one.output for one in drafted] == [one.output for one in plain]


def test_good_drafts_take_a_fraction_of_the_steps_and_bad_ones_no_more_than_none(make: Make) -> None:
    def steps(proposer: Any, most: int) -> int:
        scheduler = Scheduler(make(proposer, most))
        scheduler.start(request([5, 6, 7]), 0)
        scheduler.run(24, drafts=most)
        return scheduler.number

    scheduler = Scheduler(make())
    one = scheduler.start(request([5, 6, 7]), 0)
    scheduler.run(40)
    assert steps(None, 0) == 24
    assert steps(Guesser("good", [one.known]), 7) == 24 // 8
    assert steps(Guesser("wrong", [one.known]), 7) == 24


def test_logits_of_drafts_in_slices_give_the_same_tokens(
    make: Make, plain: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "LOGITS_BYTES", 4 * VOCABULARY * 5)
    made = run(make(Guesser("mixed", [one.known for one in plain]), 7), requests(), 7)
    for one, other in zip(made, plain, strict=True):
        length = min(len(one.output), len(other.output))
        assert one.output[:length] == other.output[:length]


def test_a_grammar_that_is_late_behind_a_draft_ends_the_rows_step_and_holds_up_nobody(make: Make) -> None:
    scheduler = Scheduler(make())
    expected = [request([4, 5, 6], constraint=Constraint(LETTERS.digest, b"")), request([9, 8])]
    for row, one in enumerate(expected):
        scheduler.start(one, row)
    scheduler.run(20)
    executor = make(Guesser("good", [one.known for one in expected]), 3)
    grammars = executor._sampler.grammars
    company: list[tuple[bool, bool]] = []

    def late_at_every_other(
        numbers: Sequence[int], *, have_company: bool, has_waited: bool
    ) -> list[Allowed | str | None]:
        company.append((have_company, has_waited))
        answers = Grammars.allowed(grammars, numbers, have_company=False)
        return [None] * len(answers) if len(company) % 2 == 0 else answers

    scheduler = Scheduler(executor)
    told, free = (
        scheduler.start(replace(one, output=[], columns=[], computed=0, blocks=[]), row)
        for row, one in enumerate(expected)
    )
    with patch.object(grammars, "allowed", late_at_every_other):
        counts = [scheduler.step(drafts=3) for _ in range(4)]
    assert [done.late for done in counts] == [()] * 4
    assert [done.counts.tolist() for done in counts] == [[1, 4]] * 4
    assert all(have_company for have_company, _ in company)
    assert told.output == expected[0].output[:4]
    assert free.output == expected[1].output[:16]


def test_logits_that_are_no_numbers_behind_the_last_draft_keep_the_tokens_before_them(make: Make) -> None:
    scheduler = Scheduler(make())
    one, other = scheduler.start(request([4, 5, 6]), 0), scheduler.start(request([9, 8]), 1)
    scheduler.run(12)
    executor = make(Guesser("good", [one.known, other.known]), 3)
    scheduler = Scheduler(executor)
    sick, well = scheduler.start(request([4, 5, 6]), 0), scheduler.start(request([9, 8]), 1)
    sample, calls = executor._sampler.sample, 0

    def spoilt(rows: Int32, numbers: Any, logits_SV: torch.Tensor, known: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:  # behind the last draft
            logits_SV[0] = torch.nan
        return sample(rows, numbers, logits_SV, known, **how)

    with patch.object(executor._sampler, "sample", spoilt):
        scheduler.step(drafts=3)
    assert sick.output == one.output[:3]
    assert "not numbers" in str(sick.failed)
    assert well.output == other.output[:4]
    scheduler.stop(sick)
    scheduler.run(12, drafts=3)
    assert well.output == other.output


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_draft_of_which_the_model_makes_no_numbers_costs_its_row_no_token(
    oracle: tuple[Path, LlamaForCausalLM], make: Make, plain: list[Request], tmp_path: Path, backend: str
) -> None:
    """A token whose embedding is none, which nothing but drafts says."""
    said = {token for one in plain for token in one.known}
    poison = next(token for token in range(VOCABULARY) if token not in said)
    for file in oracle[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][poison] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    class Poisoner(Guesser):
        poisoned = 0

        def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
            drafts = super().propose(batch, rows, counts, asked)
            lasts = np.cumsum(drafts.counts)[(drafts.counts > 0) & (counts == 1)] - 1
            drafts.tokens[lasts[self.turn % 2 :]] = poison
            self.poisoned += len(lasts[self.turn % 2 :])
            return drafts

    guesser = Poisoner("good", [one.known for one in plain])
    drafted = run(make(guesser, 3, model_path=str(tmp_path), attention_backend=backend), requests(), 3)
    assert [one.failed for one in drafted] == [None] * len(plain)
    for one, other in zip(drafted, plain, strict=True):
        length = min(len(one.output), len(other.output))
        assert one.output[:length] == other.output[:length]
    assert guesser.poisoned > len(plain)


def test_more_drafts_than_this_executor_makes_are_refused(make: Make) -> None:
    scheduler = Scheduler(make(Guesser("good", []), 2))
    scheduler.start(request([4, 5, 6]), 0)
    with pytest.raises(ProtocolError, match="2 drafts"):
        scheduler.step(drafts=3)
    scheduler = Scheduler(make())
    scheduler.start(request([4, 5, 6]), 0)
    with pytest.raises(ProtocolError, match="0 drafts"):
        scheduler.step(drafts=1)


# --- the distribution -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Sampling, and what it makes of the model's probabilities, given the tokens before."""

    name: str
    sampling: SamplingParams

    def distribution(self, logits_V: np.ndarray, output: Sequence[int]) -> np.ndarray:
        logits = logits_V.astype(np.float64).copy()
        for token in set(output):
            logits[token] -= self.sampling.presence_penalty
        weights = np.exp((logits - logits.max()) / self.sampling.temperature)
        weights /= weights.sum()
        if self.sampling.min_p:
            weights[weights < self.sampling.min_p * weights.max()] = 0
        if self.sampling.top_k:
            weights[np.argsort(-weights, kind="stable")[self.sampling.top_k :]] = 0
        if self.sampling.top_p < 1:
            order = np.argsort(-weights, kind="stable")
            sums = np.cumsum(weights[order])
            weights[order[int(np.searchsorted(sums, self.sampling.top_p * sums[-1])) + 1 :]] = 0
        return weights / weights.sum()


DISTRIBUTIONS = [
    Setting("temperature", SamplingParams(temperature=1.0)),
    Setting("top_p", SamplingParams(temperature=0.8, top_p=0.9)),
    Setting("penalty, top_k and min_p", SamplingParams(temperature=1.2, presence_penalty=1.5, top_k=30, min_p=0.01)),
]


class Constant:
    """Drafts the same tokens always."""

    def __init__(self, drafts: Sequence[int]) -> None:
        self.drafts = np.array(drafts, dtype=np.int32)

    caches = ()

    def clear(self) -> None: ...

    def add(self, new: NewRow) -> None: ...

    def remove(self, row: int) -> None: ...

    def observe(self, *shown: object) -> None: ...

    def propose(self, batch: PersistentBatch, rows: Int32, counts: Int32, asked: Int32) -> Drafts:
        found = np.minimum(asked, len(self.drafts)).astype(np.int32)
        return Drafts(found, np.concatenate([self.drafts[:count] for count in found.tolist()]))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens expected less than five times are one bin."""
    total = counts.sum()
    expected = expected * total
    assert counts[expected == 0].sum() == 0
    is_bin = expected >= 5
    bins = [*zip(counts[is_bin], expected[is_bin], strict=True)]
    if expected[~is_bin].sum() > 0:
        bins.append((counts[~is_bin].sum(), max(expected[~is_bin].sum(), 1e-9)))
    return float(sum((seen - wanted) ** 2 / wanted for seen, wanted in bins)), len(bins) - 1


def quantile(degrees: int) -> float:
    """Which a chi-square variable exceeds once in about 100,000 times (Wilson and Hilferty 1931)."""
    return degrees * (1 - 2 / (9 * degrees) + 4.265 * (2 / (9 * degrees)) ** 0.5) ** 3


def batches(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


SAMPLES = [pytest.param(1500, id="1500"), pytest.param(50_000, id="50000", marks=pytest.mark.long)]


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("setting", DISTRIBUTIONS, ids=lambda setting: setting.name)
def test_the_distribution_is_the_models(
    make: Make, oracle: tuple[Path, LlamaForCausalLM], setting: Setting, samples: int
) -> None:
    prompt = [17, 4, 99]

    def logits(tokens: Sequence[int]) -> np.ndarray:
        with torch.inference_mode():
            return oracle[1](torch.tensor([list(tokens)])).logits[0, -1].numpy()

    first = setting.distribution(logits(prompt), [])
    # The likeliest token, then the likeliest behind it: drafts that stand as often as can be.
    draft = int(first.argmax())
    second = setting.distribution(logits([*prompt, draft]), [draft])
    drafts = [draft, int(second.argmax())]
    rows = 16 if samples < 10_000 else 64
    executor = make(Constant(drafts), 2, max_num_seqs=rows, max_num_batched_tokens=10 * rows)
    seen = np.zeros((3, VOCABULARY))
    scheduler = Scheduler(executor)
    for seeds in batches(samples, rows):
        made = [request(prompt, setting.sampling, seed=seed, most=3) for seed in seeds]
        for row, one in enumerate(made):
            scheduler.start(one, row)
        scheduler.run(3, budget=10 * rows, drafts=2)
        for one in made:
            seen[0, one.output[0]] += 1
            if one.output[0] == draft:
                seen[1, one.output[1]] += 1
                if one.output[1] == drafts[1]:
                    seen[2, one.output[2]] += 1
    third = setting.distribution(logits([*prompt, *drafts]), drafts)
    found = [chi_square(counts, expected) for counts, expected in zip(seen, (first, second, third), strict=True)]
    assert found[1][1] >= 3  # several tokens were drawn behind a draft that stood
    for statistic, degrees in found:
        assert degrees == 0 or statistic < quantile(degrees)
