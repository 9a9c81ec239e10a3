"""A conversation in the terminal, with an engine that says its input back."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from asyncpage.cli.chat import Conversation
from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import ActorDied, RequestError
from asyncpage.messages import Finish, RequestId
from asyncpage.outputs import Part

if TYPE_CHECKING:
    from asyncpage.engine import AsyncEngine


class Echo:
    """Answers with the last message, a word a turn of the loop; some words do something instead."""

    sampling_defaults: Mapping[str, Any] = {"temperature": 0.5}

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        self.samplings: list[SamplingParams] = []
        self.left: list[str] = []
        self.on_die: Callable[[str], None] = lambda reason: None

    async def chat(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams, *, adapter: str | None = None
    ) -> AsyncIterator[Part]:
        self.asked.append([(message["role"], message["content"]) for message in messages])
        self.samplings.append(sampling)
        text = messages[-1]["content"]
        try:
            for word in text.split(" "):
                match word:
                    case "REFUSE":
                        raise RequestError("the prompt is too long")
                    case "INTERRUPT":
                        os.kill(os.getpid(), signal.SIGINT)
                        await asyncio.Event().wait()
                    case "DIE":
                        self.on_die("scheduler: bad luck")
                        raise RequestError("the engine is dead", status=500)
                await asyncio.sleep(0)
                yield Part(0, word + ".", (1,))
            yield Part(0, "", (), finish=Finish(RequestId(1), "stop", 1, 1, 0))
        finally:
            self.left.append(text)


def talk(monkeypatch: pytest.MonkeyPatch, text: str, system: str | None = None) -> Echo:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    engine = Echo()
    conversation = Conversation(system, {"max_tokens": 9})
    engine.on_die = conversation.died
    with asyncio.Runner() as runner:
        conversation.run(cast("AsyncEngine", engine), runner)
    return engine


def test_each_question_comes_with_what_was_said_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = talk(monkeypatch, "one two\n\nthree\n", system="be brief")
    assert engine.asked[-1] == [
        ("system", "be brief"),
        ("user", "one two"),
        ("assistant", "one.two."),
        ("user", "three"),
    ]
    assert capsys.readouterr().out == "one.two.\nthree.\n"
    assert engine.samplings[0] == SamplingParams(temperature=0.5, max_tokens=9)


def test_reset_forgets_all_but_the_system_message(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = talk(monkeypatch, "one\n/reset\ntwo\n", system="be brief")
    assert engine.asked[-1] == [("system", "be brief"), ("user", "two")]


def test_help_and_unknown_words_ask_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = talk(monkeypatch, "/help\n/halp\n/exit\nnever asked\n")
    assert engine.asked == []
    assert "there is no /halp" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = talk(monkeypatch, "so far INTERRUPT\nand on\n")
    assert engine.left == ["so far INTERRUPT", "and on"]
    assert engine.asked[1] == [("user", "so far INTERRUPT"), ("assistant", "so.far."), ("user", "and on")]
    streams = capsys.readouterr()
    assert streams.out == "so.far.\nand.on.\n"
    assert "stopped" in streams.err


def test_a_refused_message_leaves_the_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = talk(monkeypatch, "one\nREFUSE\ntwo\n")
    assert engine.asked[-1] == [("user", "one"), ("assistant", "one."), ("user", "two")]
    assert "the prompt is too long" in capsys.readouterr().err


def test_the_death_of_an_actor_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ActorDied, match="scheduler: bad luck"):
        talk(monkeypatch, "oh DIE\n")
