"""A server behind a proxy that shows it under a path, whether the proxy takes the path off or leaves it."""

from __future__ import annotations

import pytest

from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig

ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def test_every_route_answers_with_the_path_and_without(serve) -> None:
    site = await serve(root_path="/some/llm")
    for path in ("/", "/chart", "/page/chat.js", "/docs", "/openapi.json", "/v1/models", "/v1/models/org/alias"):
        bare, shown = await site.get(path), await site.get("/some/llm" + path)
        assert (bare.status, shown.status) == (200, 200)
        assert bare.text == shown.text
    for prefix in ("", "/some/llm"):
        status, _ = await site.post(f"{prefix}/v1/chat/completions", ASKED)
        assert status == 200
    text = (await site.get("/metrics")).text
    assert 'asyncpage_http_responses_total{route="/v1/chat/completions",status="200"} 2.0' in text
    assert "some" not in text


async def test_what_needs_a_key_needs_it_under_the_path_too(serve) -> None:
    site = await serve(root_path="/llm", api_key=("secret",))
    assert (await site.get("/llm/health")).status == 200
    assert (await site.get("/llm/")).status == 200
    for path in ("/llm/v1/models", "/llm/metrics", "/llm/nowhere", "/llmv1/models"):
        assert (await site.get(path)).status == 401


async def test_errors_have_the_shape_of_the_api_that_is_asked_there(serve) -> None:
    site = await serve(root_path="/llm")
    for prefix in ("", "/llm"):
        status, body = await site.post(f"{prefix}/v1/messages", {"messages": []})
        assert (status, body["type"]) == (400, "error")


async def test_the_document_tells_where_the_server_is_shown(serve) -> None:
    site = await serve(root_path="/llm")
    assert (await site.get("/openapi.json")).json["servers"] == [{"url": "/llm"}]
    assert "servers" not in (await (await serve()).get("/openapi.json")).json


@pytest.mark.parametrize(
    "path",
    ["llm", "/", "/llm/", "/a//b", "/a b", "/{x}", "/v1", "/v1/x", "//host", "/..", "/a/./b", "/events", "/debug/why"],
)
def test_what_is_no_such_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="--root-path"):
        ServerConfig(root_path=path).check()


@pytest.mark.parametrize("path", ["", "/llm", "/a/b-c_d.e~1", "/v1x", "/.a", "/...", "/a..", "/eventsx"])
def test_what_is_one_is_taken(path: str) -> None:
    ServerConfig(root_path=path).check()
