"""Streaming: whole characters, stop strings, usage chunks, finish reasons, and every stream its own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from os.path import commonpath
from pathlib import Path

from tokenizers import Tokenizer

from tests.cases.answer import Answer
from tests.cases.chain import EOS, write_chain
from tests.cases.chain_models import MARKERS, marker, write_alpha, write_broken_characters, write_many
from tests.cases.invariants import ready, until
from tests.cases.model_folder import Model
from tests.cases.sentencepiece import write_sentencepiece
from tests.cases.server import START_S
from tests.cases.suite import Run, Suite, covers

BAD = "\ufffd"


@covers("STR-01")
async def test_a_character_split_over_tokens_arrives_whole(suite: Suite) -> None:
    async with suite.on(suite.pool.model("many", write_many), max_queue=1024, scripted=True) as run:
        streamed, whole = await run.table()
        assert BAD not in "".join(streamed.pieces())
        assert streamed.text() == whole.text() == "A😀ďB"
        assert whole.finish() == streamed.finish() == "stop"


@covers("STR-03")
async def test_a_character_that_cannot_complete_costs_itself_only(suite: Suite) -> None:
    async with suite.on(suite.pool.model("broken", write_broken_characters), scripted=True) as run:
        cut, bad = await run.table()
        assert (cut.finish(), cut.done, cut.text()) == ("length", 1, "A" + BAD)
        last = [piece for piece in cut.pieces() if piece][-1]
        assert BAD in last
        assert BAD not in "".join(cut.pieces()).removesuffix(last)
        assert (bad.finish(), bad.text()) == ("stop", f"C{BAD} ok")


@covers("STR-04")
async def test_nothing_of_a_stop_string_is_sent_before_it_matched(suite: Suite) -> None:
    async with suite.on(suite.pool.model("alpha", write_alpha), scripted=True) as run:
        (answer,) = await run.table()
        assert answer.text() == "ABC"
        assert (answer.finish(), answer.stop_reason()) == ("stop", "DEFGHIJ")
        # "JKL" is the sixth token, and the one that completes the match.
        request = {**run.case.requests[0]["json"], "stream_options": {"include_usage": True}}
        assert (await run.client.post("/v1/completions", request)).usage()["completion_tokens"] == 6


@covers("STR-06")
async def test_a_stop_string_that_ends_inside_a_token_cuts_there(suite: Suite) -> None:
    async with suite.on(suite.pool.model("alpha", write_alpha), scripted=True) as run:
        texts = [answer.text() for answer in await run.table()]
        assert texts == ["one", "one tw", "one", "one tw"]
        for stop in (["wo", " tw"], [" tw", "wo"]):
            for stream in (False, True):
                answer = await run.client.complete(
                    prompt="@words", stop=stop, temperature=0, max_tokens=9, stream=stream
                )
                assert (answer.text(), answer.stop_reason()) == ("one", " tw")


def write_leading(folder: Path) -> Model:
    scripts = {
        "@lead": [" ", " leading", " x", EOS],
        "@tag": ["<tag>", "word", EOS],
        "@lines": ["\n", "\n\n", " a", EOS],
    }
    return write_chain(folder, scripts)


@covers("STR-07")
async def test_leading_spaces_are_neither_dropped_nor_doubled(suite: Suite) -> None:
    model = suite.pool.model("leading", write_leading)
    expected = {"@lead": "  leading x", "@tag": "<tag>word", "@lines": "\n\n\n a"}
    decoder = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    async with suite.on(model) as run:
        for prompt, text in expected.items():
            fields = {"prompt": prompt, "temperature": 0, "max_tokens": 9, "return_token_ids": True}
            streamed = await run.client.complete(**fields, stream=True)
            whole = await run.client.complete(**fields)
            assert streamed.text() == whole.text() == text
            assert decoder.decode(whole.token_ids()) == text
            assert streamed.token_ids() == whole.token_ids()
        rng = random.Random(7)
        for _ in range(500):  # chunked by steps, and decoded in one go
            ids = [rng.randrange(3, model.vocab_size) for _ in range(rng.randint(1, 12))]
            answer = await run.client.complete(prompt=ids, max_tokens=0, echo=True)
            assert answer.text() == decoder.decode(ids, skip_special_tokens=True)


@covers("STR-07")
async def test_a_sentencepiece_tokenizer_keeps_its_first_space(suite: Suite) -> None:
    async with suite.on(suite.pool.model("sentencepiece", write_sentencepiece)) as run:
        for prompt, text in {"@lead": " leading x", "@first": "word"}.items():
            for stream in (False, True):
                answer = await run.client.complete(prompt=prompt, temperature=0, max_tokens=9, stream=stream)
                assert answer.text() == text


@covers("STR-09")
async def test_usage_comes_in_one_last_chunk_when_asked_for_and_only_then(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        *unasked, asked, unstreamed = await run.table()
        for answer in unasked:
            assert answer.text()
            assert not any(event.get("usage") for event in answer.events)
            assert all(event["choices"] for event in answer.events)
        with_usage = [event for event in asked.events if event.get("usage")]
        assert len(with_usage) == 1
        assert with_usage[0] is asked.events[-1]
        assert with_usage[0]["choices"] == []
        usage = asked.usage()
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == 5
        fields = {key: value for key, value in run.case.requests[0]["json"].items() if key != "stream"}
        whole = (await run.client.post("/v1/completions", fields)).usage()
        assert {key: usage[key] for key in usage if key.endswith("tokens")} == {
            key: whole[key] for key in whole if key.endswith("tokens")
        }
        assert unstreamed.status == 400
        assert unstreamed.error["param"] == "stream_options"


@covers("STR-10")
async def test_each_choice_of_a_stream_ends_once_and_is_itself(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        streamed, whole = await run.table()
        assert (streamed.done, streamed.after_done) == (1, 0)
        assert len({(event["id"], event["created"]) for event in streamed.events}) == 1
        assert {choice["index"] for event in streamed.events for choice in event["choices"]} == {0, 1, 2}
        assert len({whole.text(index) for index in range(3)}) == 3
        for index in range(3):
            chunks = streamed.chunks(index)
            assert all("finish_reason" in chunk for chunk in chunks)
            assert [chunk["finish_reason"] is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
            assert streamed.text(index) == whole.text(index)
            assert streamed.finish(index) == whole.finish(index)


async def _crowd(run: Run, randomness: random.Random, aborted: float, shared_ids: int = 100) -> list[Answer | bytes]:
    """One stream for each marker; some share a request id, some leave early."""

    async def one(stream: int) -> Answer | bytes:
        fields = {"model": "$M", "prompt": f"@m{stream};", "temperature": 0, "max_tokens": 24, "stream": True,
                  "user": "same"}  # fmt: skip
        if randomness.random() < aborted:
            return await run.client.leave("/v1/completions", fields, randomness.uniform(0.0, 1.0))
        headers = {"X-Request-Id": "shared" if stream < shared_ids else f"own-{stream}"}
        answer = await run.client.post("/v1/completions", fields, headers)
        if answer.status != 503:
            return answer
        assert int(answer.headers["Retry-After"]) >= 1  # told at once; come again, as clients do
        await until(lambda: ready(run.client), START_S)
        return await run.client.post("/v1/completions", fields, headers)

    return list(await asyncio.gather(*(one(stream) for stream in range(MARKERS))))


def _check_crowd(answers: list[Answer | bytes]) -> set[str]:
    """Every stream that was heard to its end carries its own marker, complete and in order. Returns the ids."""
    ids = []
    for stream, answer in enumerate(answers):
        own = "".join(str(piece) for piece in marker(stream))
        if isinstance(answer, Answer):
            assert answer.text() == own * 8, f"stream {stream}"
            ids.append(answer.events[0]["id"])
        else:
            others = {str(piece) for other in range(MARKERS) if other != stream for piece in marker(other)}
            assert not any(piece.encode() in answer for piece in others), f"stream {stream}"
    assert len(set(ids)) == len(ids)
    return set(ids)


@covers("STR-11")
async def test_four_hundred_streams_carry_their_own_text_only(suite: Suite) -> None:
    async with suite.on(suite.pool.model("many", write_many), max_queue=1024, scripted=True) as run:
        run.growth = 64 << 20  # four hundred connections at once leave the allocator with more
        ids = _check_crowd(await _crowd(run, random.Random(11), aborted=0.25))
        assert min(len(commonpath([id, other])) for id in ids for other in ids) < 12
        assert all(len(id.partition("-")[2]) >= 16 for id in ids)


@covers("STR-11")
async def test_streams_keep_to_themselves_through_an_executor_restart(suite: Suite) -> None:
    async with suite.on(suite.pool.model("many", write_many), max_queue=1024, scripted=True) as run:
        run.growth = 64 << 20
        run.client.allowed = {503}
        crowd = asyncio.ensure_future(_crowd(run, random.Random(12), aborted=0.25))

        async def idle() -> str:
            running = (await run.client.gauges())["num_requests_running"]
            return "" if running >= 8 else f"{running} streams run"

        await until(idle, 20.0 * suite.slack)
        executor = run.server.executor
        assert executor is not None
        os.kill(executor, signal.SIGKILL)
        _check_crowd(await crowd)


@covers("STR-11", long=True)
async def test_ten_thousand_answers_have_ten_thousand_ids(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        run.growth = 64 << 20
        ids: set[str] = set()
        for _ in range(100):
            answers = await asyncio.gather(*(run.client.complete(prompt="x", max_tokens=1) for _ in range(100)))
            ids |= {answer.json["id"] for answer in answers}
        assert len(ids) == 10_000
