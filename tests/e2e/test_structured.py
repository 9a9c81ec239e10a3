"""Answers follow their grammar, whatever is done to the requests: drawn, streamed, preempted, begun anew."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from asyncpage import LLM
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import RequestError
from asyncpage.outputs import RequestOutput, gather
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer
from tests.e2e.oracle import check_idle

Structured = Mapping[str, Any]

PATTERN = r"[a-c]{3,20}-(?:[0-9]{2}|é)(?: and [x-z]+){0,3}\."
CHOICES = ("yes", "no", "no, thank you", "żółty")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "inner": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17}}},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
ASKED: list[Structured] = [{"regex": PATTERN}, {"choice": CHOICES}, {"json": SCHEMA}]


def check(structured: Structured, text: str) -> None:
    """By the standard library, and by the schema's words written out."""
    if "regex" in structured:
        assert re.fullmatch(PATTERN, text), text
    elif "choice" in structured:
        assert text in CHOICES
    else:
        found = json.loads(text)
        assert len(found.pop("name")) <= 8
        assert found.pop("size") in ("small", "large")
        tags = found.pop("tags")
        assert len(tags) <= 3
        assert all(tag in (True, False) for tag in tags)
        inner = found.pop("inner", {})
        assert 3 <= inner.get("n", 3) <= 17
        assert type(inner.get("n", 3)) is int
        assert not found


def config_of(model: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "model": str(model),
            "placement": "inproc",
            "block_size": 4,
            "max_model_len": 240,
            "max_num_seqs": 16,
            "cpu_threads": 1,
            **settings,
        }
    )


@asynccontextmanager
async def started(config: EngineConfig) -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(config)
    try:
        yield engine
        await check_idle(engine)
    finally:
        await engine.stop()


async def answered(
    engine: AsyncEngine,
    structured: Structured | None,
    sampling: SamplingParams,
    prompt: str = "def main(",
    on_token: Callable[[], None] = lambda: None,
) -> RequestOutput:
    parts = []
    async for part in engine.generate(prompt, sampling, structured=structured):
        parts.append(part)
        if part.token_ids:
            on_token()
    return gather(parts, sampling.n, has_logprobs=sampling.logprobs is not None, has_prompt_logprobs=False)


def drawn(seed: int, **more: Any) -> SamplingParams:
    # A model of random weights would rather go on for ever: repetition is made dear, so that texts end.
    return SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": seed, "frequency_penalty": 0.2, **more})


async def everyone(
    engine: AsyncEngine, on_token: Callable[[], None] = lambda: None
) -> list[tuple[str, tuple[int, ...], str | None]]:
    """Twelve with a grammar and four without, at once."""
    requests = [(ASKED[seed % 4] if seed % 4 < 3 else None, seed) for seed in range(16)]
    outputs = await asyncio.gather(
        *(
            answered(engine, structured, drawn(seed, max_tokens=200 if structured else 60), f"def f{seed}(", on_token)
            for structured, seed in requests
        )
    )
    for (structured, _), output in zip(requests, outputs, strict=True):
        if structured is not None and output.outputs[0].finish_reason == "stop":
            check(structured, output.outputs[0].text)
    return [(one.text, tuple(one.token_ids), one.finish_reason) for one in (output.outputs[0] for output in outputs)]


@pytest.fixture(scope="module")
def undisturbed(tiny_model: Path) -> list[tuple[str, tuple[int, ...], str | None]]:
    async def main() -> list[tuple[str, tuple[int, ...], str | None]]:
        async with started(config_of(tiny_model)) as engine:
            return await everyone(engine)

    answers = asyncio.run(main())
    assert sum(reason == "stop" for _, _, reason in answers) >= 9
    return answers


async def test_answers_are_the_same_when_they_are_preempted(
    tiny_model: Path, undisturbed: list[tuple[str, tuple[int, ...], str | None]]
) -> None:
    async with started(config_of(tiny_model, num_kv_blocks=62, itl_target_ms=0.0)) as engine:
        assert await everyone(engine) == undisturbed
        assert engine.house.scheduler.stats()["preemptions"] > 0


async def test_answers_are_the_same_with_two_steps_in_flight_and_alone(
    tiny_model: Path, undisturbed: list[tuple[str, tuple[int, ...], str | None]]
) -> None:
    async with started(config_of(tiny_model, pipeline_depth=2)) as engine:
        assert await everyone(engine) == undisturbed
    async with started(config_of(tiny_model, max_num_seqs=1)) as engine:
        assert await everyone(engine) == undisturbed


async def test_answers_go_on_where_they_were_when_executors_die(
    tiny_model: Path, undisturbed: list[tuple[str, tuple[int, ...], str | None]]
) -> None:
    async with started(config_of(tiny_model, placement="process")) as engine:
        seen = 0

        def kill_twice() -> None:
            nonlocal seen
            seen += 1
            if seen in (40, 300):
                assert engine.executor.pid is not None
                os.kill(engine.executor.pid, signal.SIGKILL)

        assert await everyone(engine, kill_twice) == undisturbed
        assert engine.house.scheduler.stats()["executor_losses"] == 2


async def test_choices_of_one_request_each_follow_the_grammar(tiny_model: Path) -> None:
    async with started(config_of(tiny_model)) as engine:
        for structured in ASKED:
            output = await answered(engine, structured, drawn(3, n=6, logprobs=2))
            for one in output.outputs:
                if one.finish_reason == "stop":
                    check(structured, one.text)
                assert one.logprobs is not None
                assert len(one.logprobs) == len(one.token_ids)
            assert len({one.text for one in output.outputs}) > 1


async def test_stop_strings_lengths_and_end_tokens_end_an_answer_each_in_its_way(tiny_model: Path) -> None:
    async with started(config_of(tiny_model)) as engine:
        digits = {"regex": "[0-9]{40}"}
        whole = (await answered(engine, digits, drawn(1))).outputs[0]
        assert (len(whole.text), whole.finish_reason) == (40, "stop")
        assert re.fullmatch("[0-9]{40}", whole.text)
        cut = (await answered(engine, digits, drawn(1, stop=(whole.text[10:13],)))).outputs[0]
        assert cut.text == whole.text[: whole.text.index(whole.text[10:13])]
        assert cut.finish_reason == "stop"
        short = (await answered(engine, digits, drawn(1, max_tokens=5))).outputs[0]
        assert short.finish_reason == "length"
        assert whole.text.startswith(short.text)
        held = (await answered(engine, {"regex": "a*"}, drawn(1, min_tokens=9, max_tokens=30))).outputs[0]
        assert len(held.token_ids) >= 9
        over = (await answered(engine, {"choice": ["a"]}, drawn(1, min_tokens=9))).outputs[0]
        assert (over.text, over.finish_reason) == ("a", "stop")


async def test_what_cannot_be_enforced_is_refused_and_fails_nobody_else(tiny_model: Path) -> None:
    async with started(config_of(tiny_model)) as engine:
        other = asyncio.ensure_future(answered(engine, None, drawn(5)))
        for structured, sampling, param in (
            ({"regex": "("}, drawn(0), ""),
            ({"regex": "a", "choice": ["b"]}, drawn(0), "structured"),
            ({"json": {"type": "object", "properties": {"a": {"not": {"type": "string"}, "if": {}}}}}, drawn(0), None),
            ({"regex": "a"}, drawn(0, ignore_eos=True), "ignore_eos"),
        ):
            with pytest.raises(RequestError) as caught:
                await answered(engine, structured, sampling)
            assert caught.value.failure.status == 400
            assert param is None or caught.value.failure.param == param
        with pytest.raises(RequestError, match="the grammar together"):
            await answered(engine, {"regex": "[0-9]"}, drawn(0, allowed_token_ids=(70,)))
        assert len((await other).outputs[0].token_ids) > 0


async def test_the_demo_model_answers_in_the_forms_that_are_asked_for_over_http(demo_model: Path) -> None:
    config = config_of(demo_model, block_size=16, max_model_len=512, cpu_threads=None)
    engine = await AsyncEngine.start(replace(config, served_model_name=("demo",)))
    server = HttpServer(engine, ServerConfig(port=0))
    await server.start()
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    try:
        messages: Any = [{"role": "user", "content": "Invent a small animal, as JSON."}]
        legs = {"type": "integer", "minimum": 2, "maximum": 8}
        animal = {"type": "object", "properties": {"legs": legs, "size": {"enum": ["tiny", "small"]}}}
        named = {"name": "animal", "strict": True, "schema": {**animal, "required": ["legs", "size"]}}
        chat = await client.chat.completions.create(
            model="demo",
            messages=messages,
            temperature=1.0,
            seed=4,
            max_tokens=40,
            response_format={"type": "json_schema", "json_schema": named},  # type: ignore[arg-type]
        )
        assert chat.choices[0].finish_reason == "stop"
        found = json.loads(chat.choices[0].message.content or "")
        assert 2 <= found["legs"] <= 8
        assert found["size"] in ("tiny", "small")
        stream = await client.completions.create(
            model="demo",
            prompt="Is the sky blue?",
            stream=True,
            temperature=1.0,
            seed=4,
            max_tokens=20,
            extra_body={"structured_outputs": {"choice": list(CHOICES)}},
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) in CHOICES
        assert chunks[-1].choices[0].finish_reason == "stop"
        whole = await client.completions.create(
            model="demo", prompt="x", n=2, logprobs=3, max_tokens=20, extra_body={"guided_regex": "[0-9]{3}-[a-f]{2}"}
        )
        for choice in whole.choices:
            assert re.fullmatch("[0-9]{3}-[a-f]{2}", choice.text)
            assert choice.finish_reason == "stop"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="demo", prompt="x", extra_body={"guided_regex": "a{5,2}"})
        assert refused.value.param == "guided_regex"
    finally:
        await client.close()
        await server.stop()
        await engine.stop()


def test_offline_answers_follow_a_grammar(tiny_model: Path) -> None:
    with LLM(str(tiny_model), max_model_len=128, max_num_seqs=4, cpu_threads=1) as llm:
        outputs = llm.generate(["a", "b"], drawn(1), structured={"choice": CHOICES}, progress=False)
        assert {output.text for output in outputs} <= set(CHOICES)
        chat = llm.chat([{"role": "user", "content": "x"}], drawn(1), structured={"regex": "ab+"}, progress=False)
        assert re.fullmatch("ab*", chat[0].text)


async def both_forms(engine: AsyncEngine) -> None:
    for structured in ({"regex": PATTERN}, {"choice": CHOICES}):
        outputs = await asyncio.gather(*(answered(engine, structured, drawn(seed)) for seed in range(4)))
        ended = [output.outputs[0].text for output in outputs if output.outputs[0].finish_reason == "stop"]
        assert ended
        for text in ended:
            check(structured, text)


async def test_llguidance_holds_answers_to_their_form_also_to_one_that_the_built_in_backend_refuses(
    tiny_model: Path,
) -> None:
    recursive = {"grammar": 'root ::= root "!" | "yes"'}
    async with started(config_of(tiny_model, grammar_backend="llguidance")) as engine:
        await both_forms(engine)
        text = (await answered(engine, recursive, drawn(0))).outputs[0].text
    assert re.fullmatch("yes!*", text)


@pytest.mark.extras
async def test_xgrammar_holds_answers_to_their_form_and_refuses_what_it_would_pass_over(tiny_model: Path) -> None:
    async with started(config_of(tiny_model, grammar_backend="xgrammar")) as engine:
        await both_forms(engine)
        with pytest.raises(RequestError, match="maxLength is not enforced by xgrammar") as caught:
            await answered(engine, {"json": SCHEMA}, drawn(0))
    assert caught.value.failure.param == "properties.name.maxLength"
