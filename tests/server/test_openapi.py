"""The API's description is valid, says what the router and the body readers do, and the answers keep it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import chain
from typing import Any

import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar.request import KINDS
from asyncpage.messages import Pooling
from asyncpage.server.anthropic.body import read_counted, read_message
from asyncpage.server.fields import Fields
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.structured_fields import read_structured
from asyncpage.server.json_body import parse_object
from asyncpage.server.openai.chat_body import read_chat
from asyncpage.server.openai.completion_body import read_completion
from asyncpage.server.openai.embedding_body import read_embedding
from asyncpage.server.openai.tokenize_body import read_detokenize, read_tokenize
from asyncpage.server.openapi.page import render
from asyncpage.server.responses.body import read_response
from asyncpage.text.tools.hermes import Hermes
from tests.server.specimen import DOCUMENT, SCHEMAS, check, field_names, resolved, specimens

READERS: dict[str, Callable[..., Any]] = {
    "ChatRequest": read_chat,
    "CompletionRequest": read_completion,
    "ResponseRequest": read_response,
    "MessageRequest": read_message,
    "CountRequest": read_counted,
    "EmbeddingRequest": read_embedding,
    "TokenizeRequest": read_tokenize,
    "DetokenizeRequest": read_detokenize,
}

# Documented, because clients send them; objects of one kind only, so that nobody has to read which.
OF_ONE_KIND = {"messages.*.tool_calls.*.type"}

# Handed on in the form that chat completions have, whose names are read then.
HANDED_ON = {"tools", "tool_choice", "parallel_tool_calls", "text", "response_format", "output_config", "output_format"}

# Read by the grammar's own reader, which Python programs call too.
READ_ELSEWHERE = "structured_outputs."

NEWER = ("ResponseRequest", "MessageRequest", "CountRequest")

SETTING = Setting(
    model_names=("a",),
    vocab_size=1000,
    max_model_len=512,
    has_chat_template=True,
    defaults={},
    max_choices=16,
    timeout_s=None,
    now=0.0,
    pooling=Pooling("last"),
    hidden_size=1,
    max_inputs=16,
    tool_parser=Hermes(""),
)


def test_the_document_is_valid_openapi() -> None:
    from openapi_spec_validator import validate

    validate(DOCUMENT)


async def test_the_document_and_the_router_have_the_same_routes(site) -> None:
    routed = {
        (route.method.lower(), route.resource.canonical)
        for route in site.server._runner.app.router.routes()
        if route.method != "HEAD" and not re.fullmatch(r"/|/chart|/page/.*|/docs/style\.css", route.resource.canonical)
    }
    assert routed == {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}


async def test_it_marks_as_open_exactly_what_needs_no_key(serve) -> None:
    site = await serve(api_key=("k",))
    for path, methods in DOCUMENT["paths"].items():
        for method, found in methods.items():
            answer = await site.get(path, method.upper())
            assert (answer.status != 401) == (found.get("security") == []), path


def taken(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], set[str], set[str]]:
    """Give the reader bodies made from the document until it takes them.

    Returns the paths of the fields that it read, the fields with which a body was taken, and those that it refused as
    unsupported.
    """
    read: set[str] = set()
    value = Fields.value

    def recorded(fields: Fields, field: str) -> Any:
        read.add(re.sub(r"\b\d+\b", "*", fields.name_of(field)))
        return value(fields, field)

    monkeypatch.setattr(Fields, "value", recorded)
    with_success: set[str] = set()
    unsupported: set[str] = set()
    whole, *others = specimens(SCHEMAS[name])
    needed = SCHEMAS[name].get("required", [])
    without = [{**whole, field: None} for field in whole if field not in needed]
    # Some exclude one another: those that were not taken yet are tried with nothing beside them.
    alone = ({each: whole[each] for each in (*needed, field)} for field in whole if field not in with_success)
    for body in chain((whole, *others, *without), alone if needed else ()):
        for _ in range(60):
            try:
                READERS[name](parse_object(json.dumps(body).encode()), SETTING)
            except RequestError as error:
                failure = error.failure
            else:
                with_success |= {field for field, given in body.items() if given is not None}
                break
            field = (failure.param or "").split(".")[0]
            assert body.get(field) is not None, failure
            if failure.code == "unsupported":
                unsupported.add(field)
            body = {**body, field: None}
        else:
            pytest.fail(f"no body of this form is taken: {body}")
    return read, with_success, unsupported


@pytest.mark.parametrize("name", READERS)
def test_every_field_that_is_described_is_read_and_every_one_that_is_read_is_described(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, with_success, unsupported = taken(name, monkeypatch)
    described = {
        path for path in field_names(SCHEMAS[name]) if "." not in path or path.split(".")[0] not in unsupported
    }
    if name in NEWER:
        assert HANDED_ON & set(SCHEMAS[name]["properties"]) <= read
        read, described = (
            {path for path in paths if path.split(".")[0] not in HANDED_ON} for paths in (read, described)
        )
    assert read == {path for path in described - OF_ONE_KIND if not path.startswith(READ_ELSEWHERE)}
    refusing = {field for field, schema in SCHEMAS[name]["properties"].items() if "Not supported" in str(schema)}
    assert set(SCHEMAS[name]["properties"]) - with_success - unsupported <= refusing


def test_every_constraint_that_is_described_is_taken_and_every_one_that_is_taken_is_described() -> None:
    described = {name for form in SCHEMAS["StructuredOutputs"]["anyOf"] for name in form.get("properties", {})}
    assert described == set(KINDS)
    for asked in specimens(SCHEMAS["StructuredOutputs"]):
        assert read_structured(Fields({"structured_outputs": asked})) is not None
    older = {name.removeprefix("guided_") for name in SCHEMAS["ChatRequest"]["properties"] if "guided_" in name}
    assert older == set(KINDS)


@pytest.mark.parametrize("name", READERS)
def test_needed_fields_are_needed_and_no_other(name: str) -> None:
    body: dict[str, Any] = {field: specimens(schema)[0] for field, schema in SCHEMAS[name]["properties"].items()}
    needed = SCHEMAS[name].get("required", [])
    bare = {field: body[field] for field in needed} or {"prompt": "a"}
    READERS[name](parse_object(json.dumps(bare).encode()), SETTING)
    for field in needed:
        with pytest.raises(RequestError) as caught:
            READERS[name](parse_object(json.dumps({**bare, field: None}).encode()), SETTING)
        assert caught.value.failure.param == field


async def events(site, path: str, **fields: Any) -> list[dict[str, Any]]:
    async with site.session.post(site.url + path, json={**fields, "stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        text = await answer.text()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


async def test_answers_chunks_and_errors_are_as_described(site) -> None:
    every = {"logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True, "echo": True}
    for fields in ({}, every, {"max_tokens": 1, "n": 2}, {"stop": "b"}):
        body = await site.complete(**{"prompt": ["abc", "d"], **fields})
        check(body, SCHEMAS["Completion"])
    chat = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True}
    for fields in ({}, chat, {"max_tokens": 1, "n": 2}):
        check(await site.chat("abc", **fields), SCHEMAS["ChatCompletion"])
    for fields in ({}, {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}):
        options = {"include_usage": True, "continuous_usage_stats": bool(fields)}
        messages = [{"role": "user", "content": "abc"}]
        for chunk in await site.stream("/v1/chat/completions", messages=messages, stream_options=options, **fields):
            check(chunk, SCHEMAS["ChatChunk"])
        own = {"logprobs": 2, "return_token_ids": True} if fields else {}
        for chunk in await site.stream("/v1/completions", prompt="abc", stream_options=options, **own):
            check(chunk, SCHEMAS["CompletionChunk"])
    for fields in ({}, {"max_output_tokens": 1}, {"include": ["message.output_text.logprobs"], "top_logprobs": 1}):
        check((await site.post("/v1/responses", {"input": "abc", **fields}))[1], SCHEMAS["Response"])
        for event in await events(site, "/v1/responses", input="abc", **fields):
            check(event, SCHEMAS["ResponseEvent"])
            if "response" in event:
                check(event["response"], SCHEMAS["Response"])
    turns = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 9}
    for fields in ({}, {"max_tokens": 1}, {"stop_sequences": ["b"]}):
        check((await site.post("/v1/messages", {**turns, **fields}))[1], SCHEMAS["AnthropicMessage"])
        for event in await events(site, "/v1/messages", **{**turns, **fields}):
            check(event, SCHEMAS["MessageEvent"])
    del turns["max_tokens"]
    check((await site.post("/v1/messages/count_tokens", turns))[1], SCHEMAS["TokenCount"])
    for asked in ({}, {"prompt": 5}, {"prompt": "a", "n": 0}):
        check((await site.post("/v1/completions", asked))[1], SCHEMAS["Error"])
    check((await site.post("/tokenize", {"prompt": "a", "return_token_strs": True}))[1], SCHEMAS["Tokenized"])
    check((await site.post("/detokenize", {"tokens": [97]}))[1], SCHEMAS["Detokenized"])
    for path, name in (
        ("/v1/models", "ModelList"),
        ("/v1/models/org/alias", "Model"),
        ("/tokenizer_info", "TokenizerInfo"),
        ("/health", "Health"),
        ("/ready", "Ready"),
        ("/load", "Load"),
        ("/version", "Version"),
    ):
        check((await site.get(path)).json, SCHEMAS[name])


def test_every_example_fits_its_schema_and_every_schema_is_used() -> None:
    from jsonschema import Draft202012Validator

    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    assert used == set(SCHEMAS)

    def walk(schema: Any) -> None:
        for example in schema.get("examples", ()):
            Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(example)
        parts = [*schema.get("anyOf", ()), *schema.get("properties", {}).values()]
        for part in [*parts, schema["items"]] if "items" in schema else parts:
            walk(part)

    for schema in SCHEMAS.values():
        walk(schema)
    for methods in DOCUMENT["paths"].values():
        for found in methods.values():
            for media in found.get("requestBody", {}).get("content", {}).values():
                check(media["example"], resolved(media["schema"]))


async def test_the_document_is_sent_as_it_is(site) -> None:
    answer = await site.get("/openapi.json")
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.json == DOCUMENT


# --- the page --------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """What a page is made of: tags with their attributes, ids, links, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        for name, value in attrs:
            self.names.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


async def test_the_page_needs_no_script_and_loads_nothing_but_its_style(site) -> None:
    answer = await site.get("/docs")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy
    page = read_page(answer.text)
    assert "script" not in page.tags
    assert not {name for name in page.names if name.startswith("on") or name == "style"}
    assert {link for link in page.links if not link.startswith("#")} == {"docs/style.css", "openapi.json"}
    style = await site.get("/docs/style.css")
    assert (style.status, style.headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "url(" not in style.text
    assert "@import" not in style.text


def test_the_page_tells_of_every_route_and_field_and_its_links_lead_somewhere() -> None:
    page = read_page(render(DOCUMENT))
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    for path, methods in DOCUMENT["paths"].items():
        assert path in page.text
        assert f"http://127.0.0.1:8000{path}" in page.text
        assert {found["operationId"] for found in methods.values()} <= set(page.ids)
    for name, schema in SCHEMAS.items():
        assert f"schema-{name}" in page.ids
        assert all(field in page.text for field in schema.get("properties", {}))


def test_nothing_in_the_document_becomes_markup() -> None:
    sign = "<script>&\"'"
    document = json.loads(json.dumps(DOCUMENT).replace("Answer a conversation", json.dumps(sign)[1:-1]))
    page = read_page(render(document))
    assert "script" not in page.tags
    assert sign in page.text
