"""Chat templates and tokens: contents of every form, templates that refuse, and the beginning-of-sequence token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cases.answer import Answer
from tests.cases.client import CHAT
from tests.cases.model_folder import Model
from tests.cases.server import DidNotStart
from tests.cases.suite import Run, Suite, covers
from tests.cases.tiny import write_tiny

STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
)


async def _prompt_tokens(run: Run, messages: list[dict[str, Any]]) -> int:
    answer = await run.client.post(CHAT, {"model": "$M", "max_tokens": 2, "messages": messages})
    return int(answer.usage()["prompt_tokens"])


@covers("CHT-01")
async def test_contents_of_every_form_are_taken_or_refused_by_name(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        null, absent, parts, unknown, number = await run.table()
        empty_turn = [dict(message) for message in run.case.requests[0]["json"]["messages"]]
        empty_turn[1]["content"] = ""
        assert null.usage()["prompt_tokens"] == absent.usage()["prompt_tokens"] == await _prompt_tokens(run, empty_turn)
        without_call = [empty_turn[0], {"role": "assistant", "content": ""}, empty_turn[2]]
        assert null.usage()["prompt_tokens"] > await _prompt_tokens(run, without_call)
        messages = run.case.requests[2]["json"]["messages"]
        for mark in ("MARK1", "MARK2", "MARK3"):
            fewer = [
                {**message, "content": [part for part in message["content"] if part["text"] != mark]}
                if isinstance(message["content"], list)
                else message
                for message in messages
            ]
            assert parts.usage()["prompt_tokens"] >= await _prompt_tokens(run, fewer) + 3
        assert unknown.status == 400
        assert "hologram" in unknown.error["message"]
        assert number.status == 400
        assert number.error["param"] == "messages.0.content"


def _refusals(answers: list[Answer]) -> list[str]:
    """The messages of answers that are all clean refusals."""
    for answer in answers:
        assert answer.status == 400
        assert b"Traceback" not in answer.body
        assert b'File "' not in answer.body
    return [answer.error["message"] for answer in answers]


@covers("CHT-03")
async def test_a_template_that_is_missing_or_refuses_is_the_requests_error(suite: Suite) -> None:
    bare = suite.pool.model("no-template", lambda folder: write_tiny(folder, chat_template=None))
    async with suite.on(bare) as run:
        table = _refusals(await run.table())
        assert all("no chat template" in message for message in (table[0], table[1], table[3], table[4]))
        assert (await run.client.complete(prompt="x", max_tokens=2)).status == 200
    strict = suite.pool.model("strict-template", lambda folder: write_tiny(folder, chat_template=STRICT))
    async with suite.on(strict) as run:
        system, twice, none, wizard, roleless = _refusals(await run.table())
        assert "no system role here" in system
        assert "roles must alternate" in twice
        assert "messages" in none
        assert "wizard" in wizard or "alternate" in wizard
        assert "role" in roleless
        assert (await run.client.complete(prompt="x", max_tokens=2)).status == 200
        assert (await run.client.chat("x", max_tokens=2)).status == 200
    broken = suite.pool.model("broken-template", lambda folder: write_tiny(folder, chat_template="{% for m in %}"))
    with pytest.raises(DidNotStart) as end:
        await suite.pool.server(broken, ["--num-kv-blocks", "64"], suite.client)
    assert "template" in end.value.attempt.log
    assert "Traceback" not in end.value.attempt.log


def write_with_bos(folder: Path) -> Model:
    template = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    return write_tiny(folder, chat_template=template, add_bos_token=True)


@covers("CHT-04")
async def test_a_prompt_begins_with_one_beginning(suite: Suite) -> None:
    model = suite.pool.model("with-bos", write_with_bos)
    async with suite.on(model) as run:
        chat_ids, text_ids, chat, text, bare = await run.table()
        bos = model.ids["<s>"]
        seen = await run.client.chat("hi", max_tokens=1, prompt_logprobs=0)
        entries = seen.json["prompt_logprobs"]
        assert entries[0] is None
        assert all(str(bos) not in entry for entry in entries[1:])
        assert next(iter(entries[1])) == str(model.ids["<|user|>"])  # so the one entry before it is the beginning
        echoed = await run.client.complete(prompt="hi", max_tokens=0, echo=True, logprobs=0, skip_special_tokens=False)
        tokens = echoed.logprobs()["tokens"]
        assert tokens[0] == "<s>"
        assert tokens.count("<s>") == 1
        assert len(tokens) == text.usage()["prompt_tokens"]
        verbatim = await run.client.complete(prompt=[bos, bos, 10, 11], max_tokens=1)
        assert verbatim.usage()["prompt_tokens"] == 4
        assert bare.usage()["prompt_tokens"] == text.usage()["prompt_tokens"] - 1
        assert chat_ids.json["count"] == len(chat_ids.json["tokens"]) == chat.usage()["prompt_tokens"]
        assert chat_ids.json["tokens"].count(bos) == text_ids.json["tokens"].count(bos) == 1
        assert len(text_ids.json["tokens"]) == text.usage()["prompt_tokens"]
        answer = await run.client.complete(prompt=chat_ids.json["tokens"], max_tokens=1, temperature=0)
        same = await run.client.chat("hi", max_tokens=1, temperature=0)
        assert answer.text() == same.text()
