"""An answer that is kept until it is whole is read while it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Finish, RequestId, RequestOptions, TextPrompt
from asyncpage.server.call import Call, Output
from asyncpage.server.generate.collector import Collector
from asyncpage.server.generate.shape import Head
from asyncpage.server.openai.chat_shape import ChatShape
from asyncpage.text.reply import ContentPart, PlainReader, ReplyPart, ReplyReader


class Noting:
    """Keeps what it was fed in its class, and shouts."""

    fed: list[str]

    def feed(self, text: str) -> Sequence[ReplyPart]:
        self.fed.append(text)
        return (ContentPart(text.upper()),)

    def end(self) -> Sequence[ReplyPart]:
        return (ContentPart("!"),)


def collector(new_reader: type[ReplyReader]) -> Collector:
    sampling, output = SamplingParams(n=2), Output()
    call = Call("m", (TextPrompt("a"),), sampling, RequestOptions(), output, new_reader=new_reader)
    return Collector(call, ChatShape(output, None), Head("x_1", 1, "m"))  # type: ignore[arg-type]


async def contents(made: Collector) -> list[str]:
    for index in range(2):
        made.finished(index, Finish(RequestId(index + 1), "stop", 1, 2, 0))
    return [choice["message"]["content"] for choice in json.loads(await made.answer())["choices"]]


async def test_text_is_read_as_it_arrives_each_choice_by_itself() -> None:
    Noting.fed = []
    made = collector(Noting)
    for index, text in ((0, "ab"), (1, "x"), (0, "c")):
        made.text(index, text, (1,), None)
    assert Noting.fed == ["ab", "x", "c"]
    assert await contents(made) == ["ABC!", "X!"]


async def test_text_that_is_all_content_is_joined_once() -> None:
    made = collector(PlainReader)
    for index, text in ((0, "ab"), (1, "x"), (0, "c")):
        made.text(index, text, (1,), None)
    assert await contents(made) == ["abc", "x"]
