"""Rows that follow a grammar, among others: what they may say, how they end, and what fails them alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from unittest.mock import patch

import numpy as np
import pytest
import torch

from asyncpage.core.sampling import SamplingParams
from asyncpage.executor import grammar as grammars
from asyncpage.executor.grammar import forbid
from asyncpage.executor.sampler import Sampled, Sampler
from asyncpage.grammar import automaton, builtin, configuration
from asyncpage.grammar.network import Network
from asyncpage.messages import Constraint, LearnGrammar, LearnVocabulary, NewRow, RequestId
from tests.grammar.networks import any_of, byte, network, sequence, star, text

WORDS = [b"", b"a", b"b", b"ab", b"c", b"!", b"aa", b"", b"ba"]
END, WIDTH = 7, 11  # a control token; the model's head is wider than the vocabulary
GREEDY = SamplingParams(temperature=0.0)

A_OR_B = network(sequence(any_of(text(b"ab"), text(b"ba")), text(b"!")))
ANY_A = network(star(byte((0x61, 0x61))))


class Rows:
    """A sampler that was told the vocabulary, and what each of its rows knows."""

    def __init__(self) -> None:
        self.sampler = Sampler(WIDTH, torch.device("cpu"))
        lengths = np.array(list(map(len, WORDS)), dtype=np.int32)
        self.sampler.grammars.learn(LearnVocabulary(b"".join(WORDS), lengths))
        self.known: dict[int, list[int]] = {}
        self.digests: dict[int, bytes] = {}

    def learn(self, net: Network, forget: tuple[bytes, ...] = ()) -> Constraint:
        digest = bytes([len(self.digests)])
        self.digests[len(self.digests)] = digest
        self.sampler.grammars.learn(LearnGrammar(Constraint(digest, net.to_bytes()), forget))
        return Constraint(digest, b"")

    def add(
        self,
        row: int,
        constraint: Constraint | None,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
        ends: tuple[int, ...] = (END,),
    ) -> None:
        tokens = np.array([2, 4, *output], dtype=np.int32)
        new = NewRow(
            row, RequestId(row), tokens.tobytes(), 2, 0, (), sampling, sampling.seed or row, ends, constraint=constraint
        )
        assert self.sampler.refusal(new) is None
        self.sampler.add(new, tokens)
        self.known[row] = tokens.tolist()

    def step(self, logits: dict[int, Sequence[float]]) -> Sampled:
        rows = np.array(list(logits), dtype=np.int32)
        numbers = np.array([len(self.known[row]) - 2 for row in logits])
        stacked = torch.tensor(list(logits.values()), dtype=torch.float32)
        done = self.sampler.sample(rows, numbers, stacked, lambda row: np.array(self.known[row], dtype=np.int32))
        kept = np.ones(len(rows), dtype=bool)
        kept[[index for index, _ in done.failed]] = False
        kept[list(done.late)] = False
        self.sampler.append(rows[kept], done.tokens[kept])
        for row, token in zip(rows[kept].tolist(), done.tokens[kept].tolist(), strict=True):
            self.known[row].append(token)
        return done

    def output(self, row: int) -> list[bytes]:
        return [WORDS[token] if token != END else b"END" for token in self.known[row][2:]]


@pytest.fixture
def rows() -> Iterator[Rows]:
    made = Rows()
    with patch.object(grammars, "PATIENCE_S", 60.0):
        yield made
    made.sampler.grammars.close()


def prefers(*tokens: int) -> list[float]:
    """Logits of the vocabulary in this order of preference, then the rest by id."""
    order = [*tokens, *(token for token in range(WIDTH) if token not in tokens)]
    return [float(WIDTH - order.index(token)) for token in range(WIDTH)]


def test_a_greedy_row_says_the_likeliest_that_is_allowed_and_ends_when_nothing_else_may_come(
    rows: Rows,
) -> None:
    rows.add(0, rows.learn(A_OR_B))
    for _ in range(4):
        assert not rows.step({0: prefers(10, END, 0, 5, 6, 2, 1)}).failed
    assert rows.output(0) == [b"b", b"a", b"!", b"END"]


def test_an_end_token_is_allowed_exactly_where_the_text_may_end(rows: Rows) -> None:
    rows.add(0, rows.learn(ANY_A))
    rows.add(1, rows.learn(A_OR_B))
    rows.step({0: prefers(1), 1: prefers(END, 3)})
    rows.step({0: prefers(END, 1), 1: prefers(END, 3)})
    assert rows.output(0) == [b"a", b"END"]
    assert rows.output(1) == [b"ab", b"!"]


def test_a_text_token_that_ends_is_allowed_only_where_the_text_may_end(rows: Rows) -> None:
    rows.add(0, rows.learn(A_OR_B), ends=(1, END))
    rows.step({0: prefers(1, 2)})
    assert rows.output(0) == [b"b"]


def test_a_complete_text_ends_whatever_min_tokens_says_and_an_incomplete_one_goes_on(rows: Rows) -> None:
    sampling = SamplingParams(temperature=0.0, min_tokens=5)
    rows.add(0, rows.learn(A_OR_B), sampling)
    rows.add(1, rows.learn(ANY_A), sampling)
    for _ in range(3):
        rows.step({0: prefers(END, 3), 1: prefers(END, 1)})
    assert rows.output(0) == [b"ab", b"!", b"END"]
    assert rows.output(1) == [b"a", b"a", b"a"]


def test_the_step_after_an_end_fails_nothing(rows: Rows) -> None:
    rows.add(0, rows.learn(A_OR_B), output=(3, 5))
    for _ in range(3):  # a step more may be under way when the end is read
        assert not rows.step({0: prefers(1)}).failed
    assert rows.output(0)[-3:] == [b"END"] * 3


def test_rows_without_a_grammar_say_what_they_say_alone(rows: Rows) -> None:
    constraint = rows.learn(A_OR_B)
    rows.add(0, constraint)
    rows.add(1, None)
    rows.add(2, None, SamplingParams(seed=4))
    rows.add(3, constraint, SamplingParams(seed=4))
    logits = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1)).tolist()
    for values in logits:
        assert not rows.step(dict.fromkeys(range(4), values)).failed
    alone = Rows()
    alone.add(1, None)
    alone.add(2, None, SamplingParams(seed=4))
    for values in logits:
        alone.step({1: values})
        alone.step({2: values})
    assert (rows.known[1], rows.known[2]) == (alone.known[1], alone.known[2])
    assert b"".join(rows.output(3)).removesuffix(b"END" * rows.output(3).count(b"END")) in (b"ab!", b"ba!")


def test_log_probabilities_are_those_before_the_grammar(rows: Rows) -> None:
    rows.add(0, rows.learn(A_OR_B), SamplingParams(temperature=0.0, logprobs=2))
    values = prefers(10, 0, 3)
    done = rows.step({0: values})
    raw = torch.log_softmax(torch.tensor(values), dim=0)
    assert done.tokens.tolist() == [3]
    assert done.logprobs is not None
    assert done.logprobs.token_logprobs.tolist() == pytest.approx([float(raw[3])])
    assert done.logprobs.top_ids.tolist() == [[10, 0]]
    assert done.logprobs.ranks.tolist() == [3]


def test_biases_and_penalties_choose_among_what_is_allowed(rows: Rows) -> None:
    rows.add(0, rows.learn(ANY_A), SamplingParams(temperature=0.0, logit_bias=((10, 100.0), (6, 50.0))))
    rows.add(1, rows.learn(ANY_A), SamplingParams(temperature=0.0, presence_penalty=2.0))
    rows.step({0: prefers(1), 1: prefers(1, 6)})
    rows.step({0: prefers(1), 1: prefers(1, 6)})
    assert rows.output(0) == [b"aa", b"aa"]
    assert rows.output(1) == [b"a", b"aa"]


def test_a_row_goes_on_where_its_output_had_come_to(rows: Rows) -> None:
    constraint = rows.learn(A_OR_B)
    rows.add(0, constraint, output=(2,))
    rows.step({0: prefers(2, 1)})
    rows.sampler.clear()
    rows.add(4, constraint, output=(2, 1))
    rows.step({4: prefers(2, 1, END)})
    assert rows.output(0) == [b"b", b"a"]
    assert rows.output(4) == [b"b", b"a", b"!"]


def test_what_does_not_follow_its_grammar_fails_alone(rows: Rows) -> None:
    constraint = rows.learn(A_OR_B)
    rows.add(0, constraint, output=(5,))
    rows.add(1, constraint)
    rows.add(2, Constraint(b"unheard", b""))
    rows.add(3, None)
    done = rows.step(dict.fromkeys(range(4), prefers(1)))
    assert dict(done.failed).keys() == {0, 2}
    assert "does not allow" in dict(done.failed)[0]
    assert "not told" in dict(done.failed)[2]
    assert rows.output(1) == rows.output(3) == [b"a"]


def test_a_grammar_that_no_token_can_follow_fails_its_row_alone(rows: Rows) -> None:
    rows.add(0, rows.learn(network(text(b"xyz"))))
    rows.add(1, rows.learn(A_OR_B), SamplingParams(temperature=0.0, allowed_token_ids=(0, 4)))
    rows.add(2, None)
    done = rows.step(dict.fromkeys(range(3), prefers(1)))
    assert "no token begins" in dict(done.failed)[0]
    assert "the grammar together" in dict(done.failed)[1]
    assert rows.output(2) == [b"a"]


def test_bytes_that_are_no_network_fail_their_row_alone(rows: Rows) -> None:
    rows.sampler.grammars.learn(LearnGrammar(Constraint(b"broken", b"apgn")))
    rows.add(0, Constraint(b"broken", b""))
    rows.add(1, None)
    done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert [index for index, _ in done.failed] == [0]


def test_whatever_a_backend_raises_fails_its_row_alone_and_is_told_without_the_grammar(rows: Rows) -> None:
    with patch.object(builtin.BuiltinFollower, "mask", side_effect=RuntimeError("near 'secret'")):
        rows.add(0, rows.learn(A_OR_B))
        rows.add(1, None)
        done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert done.failed == ((0, "the grammar could not be followed: RuntimeError"),)


def test_a_mask_of_another_size_than_the_vocabularys_fails_its_row_alone(rows: Rows) -> None:
    masks = [np.array(bits, dtype=np.uint8) for bits in ([2, 0, 0], [2, 0])]
    with patch.object(builtin.BuiltinFollower, "mask", side_effect=masks):
        rows.add(0, rows.learn(ANY_A))
        rows.add(1, rows.learn(ANY_A))
        done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert [index for index, _ in done.failed] == [0]
    assert "size" in done.failed[0][1]
    assert rows.output(1) == [b"a"]


def test_a_grammar_past_a_bound_fails_its_row_alone(rows: Rows) -> None:
    with patch.object(configuration, "MAX_CLOSURE", 1):
        rows.add(0, rows.learn(network(star(any_of(text(b"a"), text(b"b"))))))
        rows.add(1, None)
        done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert [index for index, _ in done.failed] == [0]
    assert "ways" in done.failed[0][1]


def test_a_row_that_finds_its_automaton_full_goes_on_in_a_fresh_one(rows: Rows) -> None:
    either = network(any_of(text(b"ab" * 20), text(b"ba" * 20)))
    with (
        patch.object(automaton, "MAX_BYTES", 50_000),
        patch.object(builtin, "Automaton", wraps=builtin.Automaton) as made,
    ):
        constraint = rows.learn(either)
        for row, letters in ((0, (1, 2)), (1, (2, 1))):
            rows.add(row, constraint)
            for step in range(40):
                assert not rows.step({row: prefers(letters[step % 2])}).failed
    assert made.call_count == 2
    assert [b"".join(rows.output(row)) for row in (0, 1)] == [b"ab" * 20, b"ba" * 20]


def test_an_automaton_that_is_left_counts_until_the_last_row_in_it_has_gone(rows: Rows) -> None:
    either = network(any_of(text(b"ab" * 20), text(b"ba" * 20)))
    constraint = rows.learn(either)
    with patch.object(automaton, "MAX_BYTES", 50_000):
        for row, letters in ((0, (1, 2)), (1, (2, 1))):
            rows.add(row, constraint)
            for step in range(40):
                rows.step({row: prefers(letters[step % 2])})
    rows.sampler.grammars.allowed([1], have_company=False)
    [grammar] = rows.sampler.grammars._living
    assert isinstance(grammar, builtin.BuiltinGrammar)
    both = grammar.size_bytes
    assert both > grammar.automaton.size_bytes
    rows.sampler.grammars.remove(0)
    rows.step({1: prefers(END)})
    rows.sampler.grammars.allowed([1], have_company=False)
    assert grammar.size_bytes == grammar.automaton.size_bytes


def test_rows_whose_grammars_take_too_much_together_fail_and_those_without_one_do_not(rows: Rows) -> None:
    with patch.object(grammars, "MOST_LIVING_BYTES", 0):
        rows.add(0, rows.learn(ANY_A))
        rows.add(1, None)
        done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert [index for index, _ in done.failed] == [0]
    assert "memory" in done.failed[0][1]
    rows.add(2, rows.learn(A_OR_B))
    assert not rows.step({2: prefers(1)}).failed


def test_the_greediest_grammar_makes_room_for_the_others(rows: Rows) -> None:
    small, large = network(text(b"ab")), network(text(b"ab" * 200))
    for row, one in enumerate((large, small)):
        rows.add(row, rows.learn(one))
    assert not rows.step(dict.fromkeys(range(2), prefers(1))).failed
    rows.sampler.grammars.allowed([0, 1], have_company=True)  # waits until both have gone on
    sizes = [one.size_bytes for one in rows.sampler.grammars._living]
    with patch.object(grammars, "MOST_LIVING_BYTES", sum(sizes) - 1):
        done = [rows.step({0: prefers(2), 1: prefers(2)}), rows.step({0: prefers(1), 1: prefers(END)})]
    assert [index for sampled in done for index, _ in sampled.failed] == [0]


def test_an_automaton_that_is_full_from_the_start_fails_its_row_alone(rows: Rows) -> None:
    with patch.object(automaton, "MAX_BYTES", 0):
        rows.add(0, rows.learn(ANY_A))
        rows.add(1, None)
        done = rows.step(dict.fromkeys(range(2), prefers(1)))
    assert [index for index, _ in done.failed] == [0]


def test_forgotten_grammars_serve_the_rows_that_follow_them(rows: Rows) -> None:
    first = rows.learn(A_OR_B)
    rows.add(0, first)
    rows.step({0: prefers(2)})
    rows.learn(ANY_A, forget=(first.digest,))
    rows.add(1, first)
    done = rows.step(dict.fromkeys((0, 1), prefers(1)))
    assert rows.output(0) == [b"b", b"a"]
    assert [index for index, _ in done.failed] == [1]


def test_drawn_tokens_are_spread_as_the_model_says_among_those_allowed(rows: Rows) -> None:
    constraint = rows.learn(ANY_A)
    values = [0.0] * WIDTH
    values[6] = float(np.log(3.0))  # three times as likely as "a" and as the end
    for row in range(600):
        rows.add(row, constraint, SamplingParams(seed=row))
    rows.step(dict.fromkeys(range(600), values))
    counts = [sum(known[2] == token for known in rows.known.values()) for token in (1, 6, END)]
    assert sum(counts) == 600
    expected = (120, 360, 120)
    assert sum((found - most) ** 2 / most for found, most in zip(counts, expected, strict=True)) < 20  # p < 0.0001


def test_a_mask_that_is_not_known_yet_makes_its_row_late_and_nobody_else(rows: Rows) -> None:
    goes_on = threading.Event()
    rows.sampler.grammars._submit(lambda _: goes_on.wait(), None)
    rows.add(0, rows.learn(A_OR_B))
    rows.add(1, None)
    with patch.object(grammars, "PATIENCE_S", 0.0):
        for _ in range(3):
            done = rows.step({0: prefers(2, 3), 1: prefers(8)})
            assert (done.late, done.failed) == ((0,), ())
    goes_on.set()
    for _ in range(2):
        assert not rows.step({0: prefers(2, 4, 5), 1: prefers(8)}).late
    assert rows.output(0) == [b"b", b"a"]
    assert rows.output(1) == [b"ba"] * 5


def test_nothing_is_done_for_rows_that_have_left_before_it_was_their_turn(rows: Rows) -> None:
    goes_on = threading.Event()
    rows.sampler.grammars._submit(lambda _: goes_on.wait(), None)
    asked: list[int] = []
    for row in range(20):
        rows.add(row, rows.learn(network(text(b"ab" * (row + 1)))))
    for row in range(17):
        rows.sampler.remove(row)
    opened = builtin.BuiltinReader.open

    def open_one(reader: builtin.BuiltinReader, compiled: bytes) -> builtin.BuiltinGrammar:
        asked.append(len(compiled))
        return opened(reader, compiled)

    with patch.object(builtin.BuiltinReader, "open", open_one):
        goes_on.set()
        assert not rows.step({row: prefers(1) for row in (17, 18, 19)}).failed
    assert len(asked) == 3
    assert [rows.output(row) for row in (17, 18, 19)] == [[b"a"]] * 3


def test_a_step_waits_for_a_row_that_is_late_for_too_long_so_that_one_that_hangs_is_not_left_without_an_end(
    rows: Rows,
) -> None:
    goes_on = threading.Event()
    rows.sampler.grammars._submit(lambda _: goes_on.wait(), None)
    rows.add(0, rows.learn(A_OR_B))
    rows.add(1, None)
    with patch.object(grammars, "PATIENCE_S", 0.0), ThreadPoolExecutor(1) as other:
        assert rows.step({0: prefers(2), 1: prefers(8)}).late == (0,)
        with patch.object(grammars, "MOST_LATE_S", -1.0):
            step = other.submit(rows.step, {0: prefers(2), 1: prefers(8)})
            assert not wait([step], 0.2).done
            goes_on.set()
            assert step.result().late == ()
    assert rows.output(0) == [b"b"]


def test_without_company_a_step_waits_until_one_of_its_rows_may_say_something(rows: Rows) -> None:
    for row in range(4):
        rows.add(row, rows.learn(network(text(b"ab" * (row + 1)))))
    with patch.object(grammars, "PATIENCE_S", 0.0):
        for _ in range(40):
            left = {row: prefers(1) for row in range(4) if END not in rows.known[row]}
            if left:
                assert len(rows.step(left).late) < len(left)
    assert [b"".join(rows.output(row)) for row in range(4)] == [b"ab" * (row + 1) + b"END" for row in range(4)]


def test_bits_beyond_a_byte_forbid_the_right_tokens() -> None:
    logits = torch.zeros(3, 19)
    allowed = np.zeros((2, 24), dtype=np.uint8)
    allowed[0, [0, 7, 8, 18]] = 1
    allowed[1, [5]] = 1
    forbid(logits, [2, 0], list(np.packbits(allowed, axis=1, bitorder="little")))
    assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == [0, 7, 8, 18]
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [5]
    assert torch.isfinite(logits[1]).all()
