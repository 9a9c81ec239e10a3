"""The anthropic package drives the server: what users write, unchanged."""

from collections.abc import AsyncIterator

import anthropic
import pytest

from asyncpage.errors import Failure

TOOL = {"name": "get", "description": "gets", "input_schema": {"type": "object", "properties": {"a": {}}}}
SAID = '\1hm\2so\3get\4{"a": 1}\5'


@pytest.fixture
async def client(serve) -> AsyncIterator[anthropic.AsyncAnthropic]:
    site = await serve(api_key=("k",))
    async with anthropic.AsyncAnthropic(base_url=site.url, api_key="k", max_retries=0) as made:
        made.engine = site.engine  # type: ignore[attr-defined]
        yield made


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


async def test_a_message_is_read(client) -> None:
    answer = await client.messages.create(
        model="echo",
        system="be brief",
        messages=[user([{"type": "text", "text": "hi there"}])],
        max_tokens=3,
    )
    assert [block.text for block in answer.content] == ["hi "]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 3)
    assert answer._request_id
    stopped = await client.messages.create(
        model="echo", messages=[user("abcdef")], max_tokens=30, stop_sequences=["de"], extra_body={"temperature": 0}
    )
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("abc", "stop_sequence", "de")


async def test_a_message_is_streamed(client) -> None:
    async with client.messages.stream(model="echo", messages=[user("héllo")], max_tokens=30) as stream:
        assert "".join([text async for text in stream.text_stream]) == "héllo"
        final = await stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == ("héllo", "end_turn")
    assert (final.usage.input_tokens, final.usage.output_tokens) == (13, 7)
    raw = await client.messages.create(model="echo", messages=[user("ab")], max_tokens=30, stream=True)
    assert [event.type async for event in raw][-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_goes_out_and_its_result_comes_back(client, marked, is_streamed: bool) -> None:
    asked = {"model": "echo", "max_tokens": 60, "tools": [TOOL], "messages": [user(SAID)]}
    if is_streamed:
        async with client.messages.stream(**asked) as stream:
            answer = await stream.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    thought, text, call = answer.content
    assert (thought.thinking, text.text, call.name, call.input) == ("hm", "so", "get", {"a": 1})
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
    turns = [*asked["messages"], {"role": "assistant", "content": answer.content}, user([result])]
    again = await client.messages.create(**{**asked, "messages": turns})
    assert again.content[0].text == "7"
    prompt, _, _ = client.engine.submitted[-1]
    function = {"name": "get", "arguments": {"a": 1}}
    assert prompt.messages[1:] == (
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "hm",
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "7", "name": "get"},
    )


async def test_tokens_are_counted(client) -> None:
    count = await client.messages.count_tokens(model="echo", messages=[user("abc")], system="s")
    answer = await client.messages.create(model="echo", messages=[user("abc")], system="s", max_tokens=1)
    assert count.input_tokens == answer.usage.input_tokens


async def test_errors_become_the_clients_own(client) -> None:
    asked = {"model": "echo", "messages": [user("a")], "max_tokens": 5}
    with pytest.raises(anthropic.BadRequestError) as bad:
        await client.messages.create(**asked, extra_body={"temperature": 9})
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(**{**asked, "model": "claude"})
    with pytest.raises(anthropic.AuthenticationError):
        await client.with_options(api_key="other").messages.create(**asked)
    client.engine.max_queue = 0
    with pytest.raises(anthropic.RateLimitError):
        await client.messages.create(**asked)
    client.engine.max_queue = 10
    client.engine.hold()
    stream = await client.messages.create(**asked, stream=True)
    client.engine.fail_all(Failure(503, "the executor was lost", "executor_gone"))
    with pytest.raises(anthropic.APIStatusError, match="the executor was lost"):
        async for _ in stream:
            pass
