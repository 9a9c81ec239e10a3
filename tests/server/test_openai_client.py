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
