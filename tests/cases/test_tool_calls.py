"""Tool calls: the same calls however the markup is cut into tokens, and nothing lost around them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.cases.answer import Answer
from tests.cases.chain import CERTAIN, EOS, write_chain
from tests.cases.chain_models import TOOL_TEMPLATE, TWO_CALLS, split_scripts, write_splits
from tests.cases.client import CHAT
from tests.cases.model_folder import Model
from tests.cases.suite import Run, Suite, covers

CALLS = [("get_weather", {"city": "Tokyo"}), ("get_weather", {"city": "Zürich 京"})]


def streamed_calls(answer: Answer) -> list[dict[str, Any]]:
    """The calls that a stream's deltas spell: a call's first delta, and no other, has id and name."""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in answer.chunks():
        for delta in chunk["delta"].get("tool_calls") or ():
            function = delta.get("function", {})
            if delta["index"] not in calls:
                assert delta["index"] == len(calls)
                assert delta["id"]
                assert function["name"]
                assert delta["type"] == "function"
                calls[delta["index"]] = {"id": delta["id"], "name": function["name"], "arguments": ""}
            else:
                assert delta.get("id") is None
                assert function.get("name") is None
            calls[delta["index"]]["arguments"] += function.get("arguments") or ""
    return list(calls.values())


def whole_calls(answer: Answer) -> list[dict[str, Any]]:
    calls = answer.json["choices"][0]["message"].get("tool_calls") or []
    assert all(call["type"] == "function" and isinstance(call["function"]["arguments"], str) for call in calls)
    return [{"id": call["id"], **call["function"]} for call in calls]


def meaning(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


async def _check_splits(run: Run, names: list[str]) -> None:
    table = [request["json"] for request in run.case.requests]

    async def ask(name: str) -> tuple[Answer, Answer]:
        messages = [{"role": "user", "content": name}]
        streamed, whole = [await run.client.post(CHAT, {**one, "messages": messages}) for one in table]
        return streamed, whole

    for start in range(0, len(names), 16):
        for streamed, whole in await asyncio.gather(*(ask(name) for name in names[start : start + 16])):
            assert meaning(streamed_calls(streamed)) == meaning(whole_calls(whole)) == CALLS
            assert [call["arguments"] for call in streamed_calls(streamed)] == [
                call["arguments"] for call in whole_calls(whole)
            ]
            assert streamed.finish() == whole.finish() == "tool_calls"
            assert streamed.text().strip() == whole.text().strip() == ""


@covers("TCL-01")
async def test_two_calls_come_out_whole_wherever_their_markup_is_cut(suite: Suite) -> None:
    model = suite.pool.model("splits", lambda folder: write_splits(folder, TWO_CALLS))
    async with suite.on(model, scripted=True) as run:
        _, names = split_scripts(TWO_CALLS, 0, 1)
        await _check_splits(run, names if suite.thorough else names[::3])


@covers("TCL-01", long=True)
async def test_two_calls_come_out_whole_from_three_pieces(suite: Suite) -> None:
    for seed in (1, 2):
        model = suite.pool.model(f"splits-{seed}", lambda folder, seed=seed: write_splits(folder, TWO_CALLS, 100, seed))
        async with suite.on(model, scripted=True) as run:
            await _check_splits(run, split_scripts(TWO_CALLS, 100, seed)[1])


OPENING = '<tool_call>\n{"name": "get_weather", "arguments": {"city":'
ONE_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def write_almost(folder: Path) -> Model:
    """Text that looks like a call, a call with text and a stop string behind it, and elsewhere what closes JSON.

    Where a call must begin, its first half is one token: spelled by bytes it would not fit into the case's forty.
    """
    scripts = {
        "@almost": ["Sure <", "tool", " it", "END", "late", EOS],
        "@after": [ONE_CALL, " and", " then ", "EN", "D!", EOS],
    }
    closing = {OPENING: CERTAIN, '"': 9.0, "}": 8.0, EOS: 7.0}
    return write_chain(
        folder,
        scripts,
        otherwise=closing,
        pieces=[OPENING],
        template=TOOL_TEMPLATE,
        flags=("--tool-call-parser", "hermes"),
    )


@covers("TCL-03")
async def test_nothing_around_a_call_is_lost_and_a_named_choice_is_kept(suite: Suite) -> None:
    async with suite.on(suite.pool.model("almost", write_almost)) as run:
        streamed, whole, named, absent, required = await run.table()
        assert streamed.text() == whole.text() == "Sure <tool it"
        assert streamed.finish() == whole.finish() == "stop"
        assert not whole_calls(whole)
        fields = run.case.requests[0]["json"]
        after = {**fields, "messages": [{"role": "user", "content": "@after"}]}
        for answer in [await run.client.post(CHAT, {**after, "stream": stream}) for stream in (True, False)]:
            calls = streamed_calls(answer) if answer.is_stream else whole_calls(answer)
            assert meaning(calls) == [("get_weather", {"city": "Rome"})]
            assert answer.text().strip() == "and then"
        plain = await run.client.post(CHAT, {**run.case.requests[2]["json"], "stream": False})
        for answer, calls in ((named, streamed_calls(named)), (plain, whole_calls(plain))):
            ((name, arguments),) = meaning(calls)
            assert name == "get_weather"
            assert isinstance(arguments["city"], str)
            assert answer.finish() == named.finish()
        assert absent.status == 400
        assert str(absent.error["param"]).startswith("tool_choice")
        assert required.status == 400
        assert str(required.error["param"]).startswith("tool")
        without = await run.client.post(CHAT, {**after, "tool_choice": "none", "stream": False})
        assert not whole_calls(without)
