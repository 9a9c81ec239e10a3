"""Clients of other people, each doing what its users do, against the real server with the demo model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import node_with, python_with, run_node, run_python

PYTHON_CLIENTS = (
    "anthropic==2.14.0",
    "instructor==1.17.0",
    "langchain-openai==1.7.4",
    "llm==0.36",
    "pydantic-ai-slim[openai]==2.38.0",
)
NODE_CLIENTS = (
    "openai@6.49.0",
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
)


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with(*PYTHON_CLIENTS)


@pytest.fixture(scope="module")
def node() -> Path:
    return node_with(*NODE_CLIENTS)


def is_person(found: dict[str, Any]) -> bool:
    return isinstance(found["name"], str) and len(found["name"]) <= 20 and 0 <= found["age"] <= 150


def test_anthropic_streams_what_it_is_answered_whole_and_calls_a_tool(python: Path, server: str) -> None:
    said = run_python(python, "anthropic_client.py", url=server, model="demo")
    text = said["whole"]["content"][0]["text"]
    assert "red" in text.lower()
    assert "".join(said["pieces"]) == said["final"]["content"][0]["text"] == text
    assert said["whole"]["stop_reason"] in ("end_turn", "max_tokens")
    used = said["whole"]["usage"]
    assert used["input_tokens"] + (used["cache_read_input_tokens"] or 0) == said["count"]
    assert said["stopped"]["stop_reason"] == "stop_sequence"
    assert "e" not in said["stopped"]["content"][0]["text"]
    [call] = [block for block in said["called"]["content"] if block["type"] == "tool_use"]
    assert (call["name"], said["called"]["stop_reason"]) == ("get_weather", "tool_use")
    assert set(call["input"]) == {"city"}
    assert said["refused"]["type"] == "error"


def test_langchain_gets_text_objects_calls_and_vectors(python: Path, server: str) -> None:
    said = run_python(python, "langchain_client.py", url=server, model="demo")
    assert "".join(said["pieces"]) == said["answer"]
    assert "red" in said["answer"].lower()
    assert 0 < said["usage"]["output_tokens"] <= 24
    assert is_person(said["person"])
    [call] = said["calls"]
    assert call["name"] == "multiply"
    assert {"a", "b"} == set(call["args"])
    assert said["told"]["usage"]["output_tokens"] > 0
    assert "Paris" in said["text"]
    assert said["vectors"] == [576, 576]


def test_llm_streams_and_keeps_to_a_schema(python: Path, server: str) -> None:
    said = run_python(python, "llm_client.py", url=server, model="demo")
    assert "".join(said["pieces"]) == said["whole"]
    assert "red" in said["whole"].lower()
    assert is_person(json.loads(said["dog"]))


def test_instructor_gets_a_typed_answer_in_every_mode(python: Path, server: str) -> None:
    said = run_python(python, "instructor_client.py", url=server, model="demo")
    assert set(said) == {"TOOLS", "JSON_SCHEMA"}
    assert all(is_person(person) for person in said.values())


def test_pydantic_ai_gets_typed_answers_and_streams(python: Path, server: str) -> None:
    said = run_python(python, "pydantic_ai_client.py", url=server, model="demo")
    assert is_person(said["tool"])
    assert is_person(said["native"])
    assert "".join(said["pieces"]) == said["whole"]


def test_the_openai_package_of_npm_does_what_its_users_do(node: Path, server: str) -> None:
    said = run_node(node, "openai_client.mjs", url=server, model="demo")
    text = said["whole"]["choices"][0]["message"]["content"]
    assert "red" in text.lower()
    assert "".join(said["pieces"]) == said["helped"] == text
    assert "Paris" in said["completion"]["choices"][0]["text"]
    assert said["response"]["output_text"] == text
    assert said["types"][:2] == ["response.created", "response.in_progress"]
    assert said["types"][-1] in ("response.completed", "response.incomplete")
    assert said["chunks"] >= 3
    assert said["refused"] == {"status": 400, "param": "temperature", "kind": "BadRequestError"}
    assert said["vectors"] == [576, 576]


def test_the_ai_sdk_works_with_either_of_its_providers(node: Path, server: str) -> None:
    said = run_node(node, "ai_sdk_client.mjs", url=server, model="demo")
    assert said["vectors"] == [576, 576]
    for provider in ("compatible", "responses"):
        found = said[provider]
        assert "red" in found["text"].lower()
        assert "".join(found["pieces"]) == found["text"]
        assert found["streamFinish"] == found["finish"]
        assert found["finish"] in ("stop", "length")
        assert 0 < found["usage"]["outputTokens"] <= 24
        assert is_person(found["object"])
        [call] = found["calls"]
        assert call["toolName"] == "weather"
        assert set(call["input"]) == {"city"}
        assert found["callFinish"] == "tool-calls"
