"""The openai client drives the real server, started by the script that users start."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.e2e.serving import serving

QUESTION = [{"role": "user", "content": "Name three primary colors."}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, demo_model: object) -> Iterator[OpenAI]:
    log = tmp_path_factory.mktemp("serve") / "stderr"
    with serving(log, ("--kv-cache-bytes", "256MiB", "--log-level", "warning")) as (url, _):
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            yield client
        assert "Traceback" not in log.read_text()


def model_of(client: OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_chat_streams_what_it_answers_whole(client: OpenAI) -> None:
    model = model_of(client)
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    text = whole.choices[0].message.content
    assert text is not None
    assert "red" in text.lower()
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == text
    assert sum(map(bool, deltas)) > 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_a_completion_streams_what_it_answers_whole(client: OpenAI) -> None:
    model = model_of(client)
    whole = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=8, logprobs=2
    )
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert "Paris" in whole.choices[0].text
    assert "".join(logprobs.tokens or ()) == whole.choices[0].text
    assert len(logprobs.token_logprobs or ()) == 8
    stream = client.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_the_page_opens_and_the_probes_answer(client: OpenAI) -> None:
    root = str(client.base_url).removesuffix("/v1/")
    page = httpx.get(root)
    assert page.status_code == 200
    assert 'id="prompt"' in page.text
    for path in ("/health", "/ready", "/version", "/metrics"):
        assert httpx.get(root + path).status_code == 200
    assert "asyncpage_" in httpx.get(root + "/metrics").text


def test_the_three_conversational_apis_give_one_answer(client: OpenAI) -> None:
    model = model_of(client)
    chat = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    text = chat.choices[0].message.content
    assert chat.usage is not None

    response = client.responses.create(model=model, input=QUESTION[0]["content"], temperature=0, max_output_tokens=24)
    assert response.output_text == text
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    with client.responses.stream(
        model=model, input=QUESTION[0]["content"], temperature=0, max_output_tokens=24
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text

    url = str(client.base_url).removesuffix("/v1/")
    asked = {"messages": QUESTION, "temperature": 0, "max_tokens": 24}
    message = httpx.post(f"{url}/v1/messages", json=asked, timeout=120).json()
    assert message["content"] == [{"type": "text", "text": text}]
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat.usage.prompt_tokens
    counted = httpx.post(f"{url}/v1/messages/count_tokens", json={"messages": QUESTION}, timeout=120).json()
    assert counted == {"input_tokens": chat.usage.prompt_tokens}


def test_a_begun_answer_is_gone_on_with(client: OpenAI) -> None:
    url = str(client.base_url).removesuffix("/v1/")
    turns = [*QUESTION, {"role": "assistant", "content": "Red, blue and"}]
    asked = {"messages": turns, "temperature": 0, "max_tokens": 3}
    message = httpx.post(f"{url}/v1/messages", json=asked, timeout=120).json()
    assert message["content"][0]["text"].split()[0].strip(".,").lower() in ("yellow", "green")
