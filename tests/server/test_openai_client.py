"""The openai package drives the server: what users write, unchanged."""

from collections.abc import AsyncIterator

import openai
import pytest

from asyncpage.errors import Failure


@pytest.fixture
async def client(serve) -> AsyncIterator[openai.AsyncOpenAI]:
    site = await serve(api_key=("k",))
    async with openai.AsyncOpenAI(base_url=site.url + "/v1", api_key="k", max_retries=0) as made:
        made.engine = site.engine  # type: ignore[attr-defined]
        yield made


async def test_a_chat_answer_is_read(client) -> None:
    answer = await client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi there"}]}],
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=3,
    )
    assert answer.choices[0].message.content == "hi "
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert [entry.token for entry in answer.choices[0].logprobs.content] == list("hi ")
    assert answer._request_id


async def test_a_chat_stream_is_read(client) -> None:
    stream = await client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": "héllo"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "héllo"
    assert chunks[-1].usage.completion_tokens == 7
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_the_stream_helper_is_content(client) -> None:
    async with client.chat.completions.stream(model="echo", messages=[{"role": "user", "content": "abc"}]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "abc"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = (
    "<think>Two cities.</think>I look."
    '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tokyo"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
)


async def test_calls_of_tools_are_read(client) -> None:
    client.engine.max_model_len = 4096
    messages = [{"role": "user", "content": CALLS}]
    answer = await client.chat.completions.create(model="echo", messages=messages, tools=[WEATHER], tool_choice="auto")
    message = answer.choices[0].message
    assert [call.function.arguments for call in message.tool_calls] == ['{"city": "Tokyo"}', '{"city": "Zürich"}']
    assert (message.content, message.reasoning_content) == ("I look.", "Two cities.")
    assert answer.choices[0].finish_reason == "tool_calls"
    result = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    further = {"role": "user", "content": "so?"}
    again = await client.chat.completions.create(model="echo", messages=[*messages, message, *result, further])
    assert again.choices[0].message.content == "so?"
    single = await client.chat.completions.create(
        model="echo", messages=messages, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    assert len(single.choices[0].message.tool_calls) == 1


async def test_the_stream_helper_puts_calls_together(client) -> None:
    client.engine.max_model_len = 4096
    async with client.chat.completions.stream(
        model="echo", messages=[{"role": "user", "content": CALLS}], tools=[WEATHER], tool_choice="auto"
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (0, "get_weather", '{"city": "Tokyo"}'),
        (1, "get_weather", '{"city": "Zürich"}'),
    ]
    assert len({call.id for call in final.choices[0].message.tool_calls}) == 2
    assert final.choices[0].finish_reason == "tool_calls"


async def test_completions_are_read_streamed_and_not(client) -> None:
    answer = await client.completions.create(model="echo", prompt=["ab", "cd"], n=2, echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["abab", "abba", "cdcd", "cddc"]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    stream = await client.completions.create(model="echo", prompt="abcdef", stream=True, max_tokens=4)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "abcd"


async def test_models_are_listed(client) -> None:
    assert [model.id async for model in client.models.list()] == ["echo", "org/alias"]
    assert (await client.models.retrieve("org/alias")).id == "org/alias"


async def test_errors_become_the_clients_own(client) -> None:
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="echo", messages=messages, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as absent:
        await client.chat.completions.create(model="gpt", messages=messages)
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="other").models.list()
    client.engine.max_queue = 0
    with pytest.raises(openai.RateLimitError) as full:
        await client.chat.completions.create(model="echo", messages=messages)
    assert full.value.response.headers["retry-after"] == "3"
    client.engine.state = "loading"
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="echo", messages=messages)


async def test_an_error_within_a_stream_is_raised(client) -> None:
    client.engine.hold()
    stream = await client.completions.create(model="echo", prompt="abc", stream=True)
    client.engine.step()
    assert (await anext(stream)).choices[0].text == "a"
    client.engine.fail_all(Failure(500, "the executor is gone"))
    with pytest.raises(openai.APIError, match="the executor is gone"):
        await anext(stream)


async def test_a_response_is_read(client) -> None:
    answer = await client.responses.create(
        model="echo",
        instructions="be brief",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "hi there"}]}],
        max_output_tokens=3,
        metadata={"a": "b"},
    )
    assert answer.output_text == "hi "
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.output_tokens, answer.usage.input_tokens_details.cached_tokens) == (3, 0)
    assert (answer.metadata, answer.instructions, answer.store) == ({"a": "b"}, "be brief", False)
    assert answer._request_id


async def test_a_response_is_sent_back_as_the_next_input(client) -> None:
    first = await client.responses.create(model="echo", input="one")
    items = [{"role": "user", "content": "one"}, *first.output, {"role": "user", "content": "two"}]
    second = await client.responses.create(model="echo", input=items)
    assert second.output_text == "two"
    prompt, _, _ = client.engine.submitted[-1]
    assert [message["content"] for message in prompt.messages] == ["one", "one", "two"]
    with pytest.raises(openai.BadRequestError, match="send the whole conversation") as refused:
        await client.responses.create(model="echo", input="two", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"


async def test_a_response_is_streamed(client) -> None:
    stream = await client.responses.create(model="echo", input="héllo", stream=True)
    events = [event async for event in stream]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "héllo"
    assert events[-1].response.output_text == "héllo"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_stream_helper_of_responses_is_content(client, marked) -> None:
    tool = {"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": False}
    said = '\1hm\2so\3get\4{"a": 1}\5'
    async with client.responses.stream(model="echo", input=said, tools=[tool]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    thought, message, call = final.output
    assert thought.content[0].text == "hm"
    assert message.content[0].text == final.output_text == "so"
    assert (call.name, call.arguments) == ("get", '{"a": 1}')


async def test_a_failure_within_a_response_is_raised(client) -> None:
    client.engine.hold()
    stream = await client.responses.create(model="echo", input="abc", stream=True)
    client.engine.step()
    client.engine.fail_all(Failure(500, "the executor was lost", "executor_gone"))
    with pytest.raises(openai.APIError, match="the executor was lost"):
        async for _ in stream:
            pass
