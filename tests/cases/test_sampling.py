"""Sampling: greedy, seeds, penalties, biases, limits and bounds, each against a closed form or the model's oracle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cases.answer import Answer
from tests.cases.chain import EOS, log_softmax, write_chain
from tests.cases.chain_models import PENALTIES, write_many
from tests.cases.client import CHAT, COMPLETIONS
from tests.cases.macros import Literal
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Run, Suite, covers

SEEDED = {"prompt": "once", "temperature": 0.9, "max_tokens": 24, "seed": 42, "ignore_eos": True}


@covers("SMP-01")
async def test_temperature_zero_is_the_arg_max_whatever_else_is_asked(
    suite: Suite, tiny: Model, oracle: Oracle
) -> None:
    async with suite.on(tiny) as run:
        answers = []
        for request in run.case.requests:
            answers.append(await run.client.post(COMPLETIONS, {**request["json"], "return_token_ids": True}))
        assert {tuple(answer.token_ids()) for answer in answers} == {tuple(answers[0].token_ids())}
        assert {answer.text() for answer in answers} == {answers[0].text()}
        oracle.check_greedy(oracle.encode("tie test"), answers[0].token_ids())


@covers("SMP-01")
async def test_of_equal_logits_the_lowest_id_wins_every_time(suite: Suite) -> None:
    async with suite.on(suite.pool.model("many", write_many), max_queue=1024) as run:
        table = [
            {key: value for key, value in request["json"].items() if key != "prompt"} for request in run.case.requests
        ]
        texts = set()
        for _ in range(25 if suite.thorough else 4):
            answers = await asyncio.gather(*(run.client.post(COMPLETIONS, {**one, "prompt": "@tie"}) for one in table))
            texts |= {answer.text() for answer in answers}
        assert texts == {"\x01\x03" * 8}


@covers("SMP-03")
async def test_a_seed_alone_decides_its_answer(suite: Suite, tiny: Model) -> None:
    times = 10 if suite.thorough else 2
    found: set[str] = set()
    async with suite.on(tiny) as run:
        for _ in range(times):
            found.add((await run.client.complete(**SEEDED)).text())
        for seeds in (None, 7):
            for _ in range(times):
                found.add(await _among(run, 9, seeds, max_tokens=30))
        others = {(await run.client.complete(**{**SEEDED, "seed": seed})).text() for seed in range(4)}
        assert len(others) >= 2
    small = {"num_kv_blocks": 40, "block_size": 8, "max_num_seqs": 16}
    async with suite.on(tiny, **small) as run:  # another process, and too few blocks for all
        for _ in range(times):
            found.add((await run.client.complete(**SEEDED)).text())
        before = (await run.client.gauges())["num_preemptions_total"]
        for _ in range(times):
            found.add(await _among(run, 12, 7, max_tokens=40))
        assert (await run.client.gauges())["num_preemptions_total"] > before
    assert len(found) == 1


async def _among(run: Run, neighbours: int, seed: int | None, max_tokens: int) -> str:
    """The seeded answer while others are served; it comes last, so it is the first to make way."""

    def other(index: int) -> dict[str, Any]:
        own = {} if seed is None else {"seed": seed + index}
        return {"prompt": f"neighbour {index} " * 3, "max_tokens": max_tokens, "ignore_eos": True, **own}

    waiting = [asyncio.ensure_future(run.client.complete(**other(index))) for index in range(neighbours)]
    await asyncio.sleep(0)
    answer = await run.client.complete(**SEEDED)
    for one in await asyncio.gather(*waiting):
        assert one.finish() == "length"
    return answer.text()


def _penalised(start: str, prompt: Sequence[str], steps: int, **penalties: float) -> list[str]:
    """The closed form: what the table's model answers greedily."""
    repetition, presence, frequency = (penalties.get(name, base) for name, base in
                                       (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0)))  # fmt: skip
    answer: list[str] = []
    current = start
    for _ in range(steps):
        row = dict(PENALTIES[current])
        for piece, value in row.items():
            if piece in answer or piece in prompt:
                row[piece] = value / repetition
            row[piece] -= presence * (piece in answer) + frequency * answer.count(str(piece))
        current = str(max(row, key=lambda piece: row[piece]))
        answer.append(current)
    return answer


@covers("SMP-05")
async def test_penalties_follow_their_closed_forms_cold_and_from_the_cache(suite: Suite) -> None:
    """The repetition penalty counts prompt and answer, the two others the answer alone."""
    async with suite.on(suite.pool.model("many", write_many), max_queue=1024) as run:
        for name, value in (("repetition_penalty", 1.5), ("presence_penalty", 1.0), ("frequency_penalty", 1.0)):
            for start in ("@b", "@c"):
                prompt = ["p"] * 40 + ["@a", " ", "@a", " ", "@a", " ", start]
                fields = {"prompt": "".join(prompt), "temperature": 0, "max_tokens": 4, "logprobs": 5, name: value,
                          "return_token_ids": True, "cache_salt": f"{name}{start}"}  # fmt: skip
                cold, warm = [await run.client.complete(**fields) for _ in range(2)]
                assert cold.cached_tokens() == 0
                assert warm.cached_tokens() > 0
                ids = run.client.names.ids
                expected = _penalised(start, prompt, 4, **{name.partition("_")[0]: value})
                assert cold.token_ids() == warm.token_ids() == [ids[piece] for piece in expected]
                _check_rows(start, expected, cold, run.server.model.vocab_size)
                _check_rows(start, expected, warm, run.server.model.vocab_size)


def _check_rows(start: str, answer: Sequence[str], found: Answer, vocab_size: int) -> None:
    """The log-probabilities told are those of the model, before any penalty."""
    for current, piece, told in zip((start, *answer), answer, found.logprobs()["token_logprobs"], strict=False):
        expected = log_softmax(PENALTIES[current], vocab_size)
        assert abs(told - expected[piece]) < 1e-4


@covers("SMP-06")
async def test_a_bad_logit_bias_is_refused_and_harms_nobody(suite: Suite, tiny: Model) -> None:
    good = {"prompt": "a good stream", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
    async with suite.on(tiny) as run:
        alone = await run.client.complete(**good)
        stream = asyncio.ensure_future(run.client.complete(**good, stream=True))
        answers = await run.table()
        for literal in ("NaN", "Infinity", "-Infinity"):
            answers.append(await run.client.complete(prompt="hi", max_tokens=2, logit_bias={"3": Literal(literal)}))
        for answer in answers:
            assert answer.status == 400
            assert str(answer.error["param"]).startswith("logit_bias")
        last = str(tiny.vocab_size - 1)
        for bias in (-100, 100):
            answer = await run.client.complete(prompt="hi", max_tokens=2, logit_bias={last: bias})
            assert answer.status == 200
        assert (await stream).text() == alone.text()


def write_two_ends(folder: Path) -> Model:
    scripts = {"@eos1": ["a", EOS], "@eos2": ["b", "<eos2>"]}
    return write_chain(folder, scripts, generation={"eos_token_id": [EOS, "<eos2>"]})


def write_no_end(folder: Path) -> Model:
    return write_chain(folder, {"@eos1": ["a", EOS]}, eos_token=None)


@covers("SMP-08")
async def test_no_end_comes_before_min_tokens(suite: Suite) -> None:
    async with suite.on(suite.pool.model("two-ends", write_two_ends), scripted=True) as run:
        for answer in await run.table():
            assert answer.status == 200
            assert answer.usage()["completion_tokens"] >= 6
        plain = [
            await run.client.complete(prompt=prompt, temperature=0, max_tokens=10) for prompt in ("@eos1", "@eos2")
        ]
        assert [(one.text(), one.finish()) for one in plain] == [("a", "stop"), ("b", "stop")]
        more = await run.client.complete(prompt="@eos1", min_tokens=11, max_tokens=10)
        assert more.status == 400
        assert more.error["param"] == "min_tokens"
    async with suite.on(suite.pool.model("no-end", write_no_end), scripted=True) as run:
        for request in run.case.requests:
            answer = await run.client.post(COMPLETIONS, {**request["json"], "prompt": "pad @eos1"})
            assert answer.status == 200
            assert answer.usage()["completion_tokens"] == 10


@covers("SMP-10")
async def test_max_tokens_at_its_edges(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        echoed, empty, null, absent, *bad, huge = await run.table()
        assert (echoed.text(), echoed.usage()["completion_tokens"]) == ("Your answer: Yes", 0)
        assert (empty.text(), empty.usage()["completion_tokens"], empty.finish()) == ("", 0, "length")
        for answer in (null, absent, huge):
            assert answer.status == 200
            assert answer.usage()["total_tokens"] <= 64
        for answer in bad:
            assert answer.status == 400
            assert answer.error["param"] == "max_tokens"
        long = await run.client.complete(prompt="Your answer: Yes", max_tokens=1000000, ignore_eos=True)
        assert (long.usage()["total_tokens"], long.finish()) == (64, "length")
        chat = await run.client.chat("hi", max_tokens=1000000, ignore_eos=True)
        assert (chat.usage()["total_tokens"], chat.finish()) == (64, "length")
        for value in (0, -1, 1.5, "5", 2**63):
            answer = await run.client.chat("hi", max_tokens=value)
            assert answer.status == 400
            assert answer.error["param"] == "max_tokens"
        for null_like in ({"max_tokens": None}, {}):
            assert (await run.client.chat("hi", **null_like)).status == 200


@covers("SMP-11")
async def test_a_prompt_past_the_context_is_a_real_400_with_both_lengths(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        answers = await run.table()
        lengths = [length for length in (63, 64, 65, 640) for _ in range(2)]
        for length, answer in zip(lengths, answers, strict=True):
            if length == 63:
                assert not answer.failed
                assert answer.finish() == "length"
            else:
                assert answer.status == 400
                assert not answer.is_stream
                assert answer.error["code"] == "context_length_exceeded"
                assert str(length) in answer.error["message"]
                assert "64" in answer.error["message"]
        assert answers[0].usage() | {"prompt_tokens": 63, "completion_tokens": 1} == answers[0].usage()
        for text in ("a b c d e f g " * 20,):
            for path, fields in ((COMPLETIONS, {"prompt": text}),
                                 (CHAT, {"messages": [{"role": "user", "content": text}]})):  # fmt: skip
                for stream in (False, True):
                    answer = await run.client.post(path, {"model": "$M", "max_tokens": 1, "stream": stream, **fields})
                    assert answer.status == 400
                    assert answer.error["code"] == "context_length_exceeded"
        cut = await run.client.complete(prompt={"$range": [5, 69]}, max_tokens=1, truncate_prompt_tokens=20)
        assert cut.usage()["prompt_tokens"] == 20


LEGAL = ({"temperature": 1e-300}, {"top_k": 0}, {"seed": -1})


@covers("SMP-14")
async def test_a_number_out_of_range_is_refused_by_its_name(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        fixed = {"model", "prompt", "max_tokens"}
        for request in run.case.requests:
            answer = await run.request(request)
            ((name, value),) = [pair for pair in request["json"].items() if pair[0] not in fixed]
            assert answer.seconds < 2 * suite.slack
            assert answer.status == (200 if {name: value} in LEGAL else 400), (name, value, answer.body)
            assert answer.status == 200 or answer.error["param"] == name
        for literal in ("NaN", "Infinity", "-Infinity", "1e999"):
            for path, fields in ((COMPLETIONS, {"prompt": "hi"}),
                                 (CHAT, {"messages": [{"role": "user", "content": "hi"}]})):  # fmt: skip
                answer = await run.client.post(path, {"model": "$M", "temperature": Literal(literal), **fields})
                assert (answer.status, answer.error["param"]) == (400, "temperature")
