"""Speculation: the same tokens as without it, to the last one and no further."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from tests.cases.answer import Answer
from tests.cases.chain import CERTAIN, EOS, Piece, Table, write_chain
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Run, Suite, covers
from tests.cases.tiny import write_tiny


def prompts(count: int) -> list[list[int]]:
    """Random ones, and every third repeats itself."""
    rng = random.Random(9)
    found = []
    for number in range(count):
        piece = [rng.randrange(3, 500) for _ in range(rng.randint(4, 30))]
        found.append(piece * 4 if number % 3 == 0 else piece)
    return found


async def _all(run: Run, asked: list[list[int]], at_once: int) -> list[list[int]]:
    gate = asyncio.Semaphore(at_once)

    async def one(prompt: list[int]) -> list[int]:
        async with gate:
            answer = await run.client.complete(
                prompt=prompt, max_tokens=64, temperature=0, ignore_eos=True, return_token_ids=True
            )
            return answer.token_ids()

    return await asyncio.gather(*(one(prompt) for prompt in asked))


LOOP: list[Piece] = ["a", "b", "c", "d", "e", "f"]


def looping(end: int | None) -> Table:
    """Round and round; `end`: the place from which an end token is the next best thing, for `logit_bias` to lift."""
    table: dict[Piece, dict[Piece, float]] = {}
    for place, piece in enumerate(LOOP):
        row: dict[Piece, float] = {LOOP[(place + 1) % len(LOOP)]: CERTAIN}
        if end == place:
            row[EOS] = CERTAIN - 1
        table[piece] = row
    return {"@loop": {"a": CERTAIN}, **table}


@covers("SPC-01")
async def test_greedy_answers_are_those_without_speculation(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    asked = prompts(500 if suite.thorough else 12)
    drafts = {
        "good": tiny,
        "random": suite.pool.model("tiny-draft", lambda folder: write_tiny(folder, seed=99)),
    }
    lengths = (1, 3, 7) if suite.thorough else (3,)
    settings: list[dict[str, Any]] = [{"method": "ngram", "k": k} for k in lengths]
    settings += [{"method": "draft", "k": k, "draft": draft.folder} for draft in drafts.values() for k in lengths]
    for spec in settings:
        async with suite.on(tiny, spec=spec, chunked_prefill=True) as run:
            for at_once in (1, 16):
                for prompt, tokens in zip(asked, await _all(run, asked, at_once), strict=True):
                    oracle.check_greedy(prompt, tokens)
            gauges = await run.client.gauges()
            assert gauges["spec_decode_num_draft_tokens_total"] > 0
            if spec.get("draft") == tiny.folder:
                assert gauges["spec_decode_num_accepted_tokens_total"] > 0  # else nothing has been tried
    await _check_text_that_repeats(suite, lengths)


async def _check_text_that_repeats(suite: Suite, lengths: Sequence[int]) -> None:
    """Random weights never quote their prompt; a chain that goes round does, and every draft of it stands."""
    model = suite.pool.model("loop-0", lambda folder: write_chain(folder, {}, looping(0)))
    for length in lengths:
        async with suite.on(model, spec={"method": "ngram", "k": length}) as run:
            answer = await run.client.complete(prompt="abcdef" * 3 + "@loop", max_tokens=64, temperature=0)
            assert answer.text() == ("abcdef" * 11)[:64]
            gauges = await run.client.gauges()
            assert gauges["spec_decode_num_accepted_tokens_total"] > 0


@covers("SPC-03")
async def test_an_end_inside_a_draft_ends_there(suite: Suite) -> None:
    def both(answer: Answer) -> tuple[Any, ...]:
        usage = answer.usage()["completion_tokens"]
        return answer.text(), answer.finish(), usage, len(answer.logprobs()["tokens"]), answer.token_ids()

    cases: list[dict[str, Any]] = [{"max_tokens": 20 + offset} for offset in range(6)]
    cases += [{"max_tokens": 60, "stop": [LOOP[offset] + "a"]} for offset in range(6)]
    cases += [
        {"max_tokens": 60, "stop_token_ids": [ord(str(LOOP[offset])) + 3], "min_tokens": 12} for offset in range(6)
    ]
    found: list[list[tuple[Any, ...]]] = []
    for spec in (None, {"method": "ngram", "k": 5}):
        results = []
        for end in range(6):
            model = suite.pool.model(f"loop-{end}", lambda folder, end=end: write_chain(folder, {}, looping(end)))
            async with suite.on(model, spec=spec, max_model_len=128) as run:
                asked = [*cases, {"max_tokens": 1000}]
                asked += [{"max_tokens": 60, "min_tokens": 15, "ignore_eos": skip, "logit_bias": {"1": 2}}
                          for skip in (False, True)]  # fmt: skip
                for fields in asked:
                    for stream in (False, True):
                        more = {"stream_options": {"include_usage": True}} if stream else {}
                        answer = await run.client.complete(
                            prompt="abcdef" * 3 + "@loop", temperature=0, logprobs=0, return_token_ids=True,
                            stream=stream, **fields, **more,
                        )  # fmt: skip
                        results.append(both(answer))
                        assert answer.usage()["completion_tokens"] <= fields["max_tokens"]
        found.append(results)
    assert found[0] == found[1]
