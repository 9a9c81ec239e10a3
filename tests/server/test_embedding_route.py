"""Embeddings over HTTP: shapes, errors, cancellation, and the openai package. Vectors are the echo engine's own."""

import asyncio
import base64

import numpy as np
import openai
import pytest

from asyncpage.server.openai import embedding_route


async def test_an_answer_has_a_vector_for_each_input_in_their_order(site) -> None:
    status, body = await site.post("/v1/embeddings", {"model": "echo", "input": ["ab", "xyz"]})
    assert status == 200
    assert body["id"].startswith("embd-")
    assert (body["object"], body["model"]) == ("list", "echo")
    expected = [[2, 97, 98, np.float32(0.1)], [3, 120, 122, np.float32(0.1)]]
    assert [entry["embedding"] for entry in body["data"]] == expected
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


async def test_base64_holds_the_same_little_endian_floats(site) -> None:
    body = {"input": [[104, 105]], "encoding_format": "base64"}
    _, answer = await site.post("/v1/embeddings", body)
    packed = base64.b64decode(answer["data"][0]["embedding"])
    assert np.frombuffer(packed, dtype="<f4").tolist() == [2, 104, 105, np.float32(0.1)]


async def test_the_openai_package_reads_both_encodings(site) -> None:
    async with openai.AsyncOpenAI(base_url=site.url + "/v1", api_key="k", max_retries=0) as client:
        packed = await client.embeddings.create(model="echo", input="abc")  # base64 is its own default
        plain = await client.embeddings.create(model="echo", input=[[97, 98, 99]], encoding_format="float")
        assert packed.data[0].embedding == plain.data[0].embedding == [3, 97, 99, float(np.float32(0.1))]
        assert (packed.usage.prompt_tokens, packed.object, packed.model) == (3, "list", "echo")
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            await client.embeddings.create(model="echo", input="abc", dimensions=3)
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="none", input="abc")


async def test_a_large_answer_is_the_same_as_a_small_one(site, monkeypatch) -> None:
    body = {"input": [f"text {number}" for number in range(40)]}
    _, small = await site.post("/v1/embeddings", body)
    monkeypatch.setattr(embedding_route, "LARGE_BYTES", 1)
    _, large = await site.post("/v1/embeddings", body)
    assert large["data"] == small["data"]


async def test_one_input_that_is_too_long_refuses_all_and_is_named(site) -> None:
    site.engine.hold()
    status, body = await site.post("/v1/embeddings", {"input": ["a", "c", "b" * 513]})
    assert status == 400
    assert (body["error"]["param"], body["error"]["code"]) == ("input", "context_length_exceeded")
    assert body["error"]["message"].startswith("input.2: the prompt has 513 tokens")
    assert not site.engine.runs
    site.engine.release()
    status, body = await site.post("/v1/embeddings", {"input": ["b" * 512]})  # a vector needs no room behind it
    assert (status, body["usage"]["prompt_tokens"]) == (200, 512)


async def test_a_client_that_leaves_takes_all_its_inputs_along(site) -> None:
    site.engine.hold()
    asked = asyncio.ensure_future(site.post("/v1/embeddings", {"input": ["a", "b", "c"]}))
    await site.engine.until(lambda: len(site.engine.runs) == 3)
    asked.cancel()
    await site.engine.until(lambda: not site.engine.runs)
    assert len(site.engine.cancelled) == 3


async def test_finished_embeddings_are_counted_and_logged_like_every_call(site) -> None:
    await site.post("/v1/embeddings", {"input": ["ab", "cde"]})
    text = (await site.get("/metrics")).text
    assert "asyncpage_prompt_tokens_total 5.0" in text
    assert 'asyncpage_request_success_total{finished_reason="stop"} 2.0' in text


async def test_a_model_of_vectors_alone_refuses_every_generation_and_says_where_to_ask(site) -> None:
    site.engine.is_generative, site.engine.has_chat_template = False, False
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "a", "stream": True})):
        status, answer = await site.post(path, body)
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "model", "unsupported")
        assert "/v1/embeddings" in answer["error"]["message"]
    status, _ = await site.post("/v1/embeddings", {"input": "a"})
    assert status == 200


async def test_a_wrong_method_and_a_broken_body_are_refused_in_the_houses_shape(site) -> None:
    got = await site.get("/v1/embeddings")
    assert (got.status, got.json["error"]["code"]) == (405, "method_not_allowed")
    status, body = await site.post("/v1/embeddings", b"{")
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
