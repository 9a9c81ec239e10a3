"""Structured output: bad constraints harm nobody, keywords are enforced or refused, and nothing runs on for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.cases.answer import Answer, strict_json
from tests.cases.chain_models import write_spaces
from tests.cases.client import CHAT
from tests.cases.model_folder import Model
from tests.cases.reference_json import KEYWORDS, is_tree, longest_whitespace
from tests.cases.suite import Suite, covers

MOST_WHITESPACE = 32  # the bound is the server's own affair; this is far from a run to the end


def _schema(schema: Any, **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    return {"response_format": form, **more}


@covers("STO-01")
async def test_a_bad_constraint_is_refused_before_any_token_and_harms_nobody(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        good = [
            {"prompt": f"good {number}", "max_tokens": 150, "temperature": 0, "ignore_eos": True} for number in range(8)
        ]
        solo = [(await run.client.complete(**fields)).text() for fields in good]
        streams = asyncio.gather(*(run.client.complete(**fields, stream=True) for fields in good))
        answers = await run.table()
        assert [answer.text() for answer in await streams] == solo
        assert all(answer.status == 400 for answer in answers), [answer.body[:200] for answer in answers]
        for request, answer in zip(run.case.requests, answers, strict=True):
            field = "response_format" if "response_format" in request["json"] else "structured_outputs"
            assert str(answer.error["param"]).startswith(field), answer.error


@covers("STO-03")
async def test_a_degenerate_constraint_is_refused_or_none_at_all(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        off, empty, nothing, two, yaml, bare, null = await run.table()
        assert null.status == 200
        assert off.status in (200, 400)
        assert nothing.status in (200, 400)
        assert empty.status == two.status == yaml.status == bare.status == 400
        for answer in (empty, two):
            assert str(answer.error["param"]).startswith("structured_outputs")
        for answer in (yaml, bare):
            assert str(answer.error["param"]).startswith("response_format")


def _complete(answer: Answer) -> list[Any]:
    """The choices that ended by themselves, parsed."""
    return [
        strict_json(choice["message"]["content"])
        for choice in answer.json["choices"]
        if choice["finish_reason"] == "stop"
    ]


@covers("STO-04")
async def test_a_keyword_is_enforced_or_refused_by_its_name(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        times = 50 if suite.thorough else 6
        ended = 0
        untyped = {"required": ["a"]}
        table = [request["json"] for request in run.case.requests]
        table.append({**table[0], **_schema(untyped)})
        meanings = (*KEYWORDS, (("required",), lambda value: not isinstance(value, dict) or "a" in value))
        for fields, (keywords, is_valid) in zip(table, meanings, strict=True):
            answer = await run.client.post(CHAT, {**fields, "n": times, "seed": 3})
            if answer.status == 400:
                told = f"{answer.error['message']} {answer.error['param']}"
                assert any(keyword in told for keyword in keywords), (keywords, answer.error)
                continue
            values = _complete(answer)
            assert all(is_valid(value) for value in values), (keywords, values)
            ended += len(values)
        assert ended  # else nothing has been tried


@covers("STO-06")
async def test_whitespace_between_tokens_is_bounded_and_inside_strings_is_not_touched(suite: Suite) -> None:
    async with suite.on(suite.pool.model("spaces", write_spaces), scripted=True) as run:
        fields = run.case.requests[0]["json"]
        newline = {"logit_bias": {str(run.client.names.ids["\n"]): 40, str(run.client.names.ids[" "]): -40}}
        for more in ({}, newline):
            answer = await run.client.post(CHAT, {**fields, **more})
            value = strict_json(answer.text())
            assert answer.finish() == "stop", answer.text()
            assert set(value) == {"age", "n"}
            assert isinstance(value["age"], int)
            assert len(value["n"]) <= 5
            assert longest_whitespace(answer.text()) <= MOST_WHITESPACE
            assert more or value["n"] == " " * 5  # what the model wanted, where the schema leaves it free


@covers("STO-08")
async def test_recursion_and_depth_are_taken_or_refused_and_never_fatal(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        recursive, itself, remote, deep, deeper, deepest = await run.table()
        for answer in (remote, deeper, deepest):
            assert answer.status == 400
            assert answer.seconds < 2 * suite.slack
        assert itself.status in (200, 400)
        assert [recursive.status, deep.status] == [200, 200], (recursive.body[:300], deep.body[:300])
        assert all(is_tree(value) for value in _complete(recursive))
        mutual = {
            "$defs": {
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "additionalProperties": False},
                "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "additionalProperties": False},
            },
            "$ref": "#/$defs/a",
        }
        assert (await run.client.chat("x", max_tokens=64, **_schema(mutual))).status in (200, 400)
