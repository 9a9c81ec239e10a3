"""The proof that constrained answers keep their promise: drawn at random, checked by validators that are not ours.

Answers that their length cut off are counted apart. The long runs are the numbers that are promised: a thousand answers
over all schemas, and three hundred regular expressions.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.grammar.request import read_request
from asyncpage.messages import ChatPrompt, RequestOptions
from asyncpage.outputs import gather
from tests.e2e.structured_schemas import patterns, schemas
from tests.grammar.pydantic_models import SAYS_LESS

SEED = 20_26
ROWS = 64  # at once
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER  # the general one knows times without an offset only


@dataclass(frozen=True)
class Asked:
    structured: dict[str, Any]
    seed: int
    words: str


@dataclass(frozen=True)
class Said:
    text: str
    reason: str | None


@pytest.fixture
async def engine(demo_model: Path) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(model=str(demo_model), placement="inproc", max_model_len=768, max_num_seqs=ROWS)
    started = await AsyncEngine.start(config)
    yield started
    await started.stop()


async def said(engine: AsyncEngine, asked: Sequence[Asked], max_tokens: int) -> list[Said]:
    """An answer to each, drawn at temperature 1 from its own seed."""
    constraints = {}
    for each in asked:
        key = json.dumps(each.structured)
        if key not in constraints:
            constraints[key] = await engine.compile_grammar(read_request(each.structured)[0])

    async def one(each: Asked) -> Said:
        sampling = SamplingParams(temperature=1.0, top_p=1.0, seed=each.seed, max_tokens=max_tokens)
        options = RequestOptions(constraint=constraints[json.dumps(each.structured)])
        prompt = ChatPrompt(({"role": "user", "content": each.words},))
        parts = [part async for part in engine.generate(prompt, sampling, options)]
        output = gather(parts, 1, has_logprobs=False, has_prompt_logprobs=False).outputs[0]
        return Said(output.text, output.finish_reason)

    return await asyncio.gather(*(one(each) for each in asked))


def told(what: str, answers: Sequence[Said], kinds: int, wrong: Sequence[str]) -> str:
    """The line that says how it went."""
    reasons = Counter(answer.reason for answer in answers)
    share = reasons["stop"] / len(answers)
    return (
        f"{len(answers)} answers over {kinds} {what}: {reasons['stop']} complete ({share:.1%}), "
        f"{reasons['length']} cut off by their length, {len(wrong)} wrong"
    )


def fault_of(text: str, schema: Any, model: type[BaseModel] | None) -> str:
    """Why a text is no valid answer; nothing when it is one."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(value)
        if model is not None and model not in SAYS_LESS:
            model.model_validate_json(text)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r}: {str(error).splitlines()[0]}"
    return ""


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


async def check_schemas(engine: AsyncEngine, count: int, max_tokens: int) -> str:
    chosen = schemas()
    rounds = [chosen[index % len(chosen)] for index in range(count)]
    asked = [
        Asked({"json": schema}, SEED + index, f"Invent an example: a short {name}, as JSON in one line.")
        for index, (name, schema, _) in enumerate(rounds)
    ]
    answers = await said(engine, asked, max_tokens)
    wrong = []
    for (name, schema, model), answer in zip(rounds, answers, strict=True):
        assert answer.reason in ("stop", "length"), name
        fault = fault_of(answer.text, schema, model) if answer.reason == "stop" else ""
        if fault:
            wrong.append(f"{name}: {fault}")
    line = told("schemas", answers, len({name for name, _, _ in rounds}), wrong)
    assert not wrong, "\n".join([line, *wrong])
    assert sum(answer.reason == "stop" for answer in answers) > 0.6 * count, line
    return line


async def check_patterns(engine: AsyncEngine, chosen: Sequence[str], max_tokens: int) -> str:
    asked = [Asked({"regex": one}, SEED + index, "Say something short.") for index, one in enumerate(chosen)]
    answers = await said(engine, asked, max_tokens)
    wrong = [
        f"{pattern!r}: {answer.text!r}"
        for pattern, answer in zip(chosen, answers, strict=True)
        if answer.reason == "stop" and not re.fullmatch(pattern, answer.text)
    ]
    line = told("regular expressions", answers, len(set(chosen)), wrong)
    assert not wrong, "\n".join([line, *wrong])
    assert all(answer.reason in ("stop", "length") for answer in answers)
    assert sum(answer.reason == "stop" for answer in answers) > 0.6 * len(chosen), line
    return line


@pytest.mark.long
async def test_answers_are_valid_for_their_schemas_and_match_their_patterns(engine: AsyncEngine) -> None:
    await check_schemas(engine, 60, 120)
    await check_patterns(engine, patterns(300, SEED)[::10], 60)


@pytest.mark.long
async def test_a_thousand_answers_are_valid_and_three_hundred_patterns_match(
    engine: AsyncEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = patterns(300, SEED)
    assert len(schemas()) >= 60
    assert len(set(chosen)) == 300
    lines = await check_schemas(engine, 1_000, 200), await check_patterns(engine, chosen, 100)
    with capsys.disabled():
        print("", *lines, sep="\n")
