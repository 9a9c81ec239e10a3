"""The fields about tools: what is read, what is refused by its path, and what is made of it for prompt and answer."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import ChatPrompt
from asyncpage.server.fields import Fields
from asyncpage.server.generate.call_fields import Setting
from asyncpage.server.generate.reply_plan import ReplyPlan, plan_reply
from asyncpage.server.generate.tool_fields import MAX_TOOLS, read_tools
from asyncpage.server.generate.tool_use import ToolUse
from asyncpage.text.reasoning.think import DeepSeekR1, MistralThink
from asyncpage.text.reply import CallBegun, ContentPart, PlainReader, ReasoningPart, ReplyPart
from asyncpage.text.tools.hermes import Hermes
from asyncpage.text.tools.mistral import Mistral
from asyncpage.text.tools.registry import BUILT_IN
from asyncpage.text.tools.tool import Tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Tells it", "parameters": SCHEMA}}
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "ping"}}


def setting(**changes: Any) -> Setting:
    facts: dict[str, Any] = {
        "model_names": ("m",),
        "vocab_size": 100,
        "max_model_len": 64,
        "has_chat_template": True,
        "defaults": {},
        "max_choices": 8,
        "timeout_s": None,
        "now": 0.0,
        "tool_parser": Hermes(""),
    }
    return Setting(**{**facts, **changes})


def use(**fields: Any) -> ToolUse:
    return read_tools(Fields(fields))


def refusal(**fields: Any) -> Failure:
    with pytest.raises(RequestError) as caught:
        use(**fields)
    return caught.value.failure


def plan(given: ToolUse, **options: Any) -> ReplyPlan:
    changes = options.pop("setting", {})
    return plan_reply(given, setting(**changes), **options)


def tree(made: ReplyPlan) -> Any:
    assert made.grammar is not None
    assert made.grammar.kind == "structure"
    return json.loads(made.grammar.text)


def test_tools_are_read_as_they_are_given() -> None:
    read = use(tools=[WEATHER, {**PING, "function": {"name": "ping", "strict": True, "parameters": None}}])
    assert read == ToolUse((Tool("get_weather", "Tells it", SCHEMA, False), Tool("ping", "", None, True)))
    assert [tool.to_template() for tool in read.tools] == [
        WEATHER,
        {
            "type": "function",
            "function": {
                "name": "ping",
                "description": "",
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        },
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", "")),
        ("none", ("none", "")),
        ("auto", ("auto", "")),
        ("required", ("required", "")),
        (NAMED, ("named", "ping")),
    ],
)
def test_a_choice_is_a_word_or_a_name(choice: Any, expected: tuple[str, str]) -> None:
    read = use(tools=[WEATHER, PING], tool_choice=choice, parallel_tool_calls=None)
    assert (read.choice, read.named) == expected
    assert read.is_parallel


def test_allowed_tools_narrow_the_list_down() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    read = use(tools=[WEATHER, PING], tool_choice=allowed, parallel_tool_calls=False)
    assert read == ToolUse((Tool("ping", "", None, False),), "required", is_parallel=False)


def test_without_tools_a_choice_that_asks_for_nothing_is_accepted() -> None:
    for fields in ({}, {"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}):
        assert plan(use(**fields)) == ReplyPlan((), PlainReader, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [PING] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": ["ping"]}, "tools.0"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": 1}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools.0.function.name"),
        ({"tools": [WEATHER, PING, WEATHER]}, "tools.2.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 1}}]},
            "tools.0.function.description",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools.0.function.strict"),
        ({"tools": [PING], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [PING], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [PING], "tool_choice": 1}, "tool_choice"),
        ({"tools": [PING], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [PING], "tool_choice": {"type": "custom", "custom": {}}}, "tool_choice.type"),
        ({"tools": [PING], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [PING], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {
                "tools": [PING],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "all", "tools": [NAMED]}},
            },
            "tool_choice.allowed_tools.mode",
        ),
        (
            {"tools": [PING], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    failure = refusal(**fields)
    assert (failure.status, failure.param) == (400, param)
    assert param in failure.message


def test_none_shows_the_model_no_tools_and_reads_no_calls() -> None:
    made = plan(use(tools=[WEATHER], tool_choice="none"))
    assert made == ReplyPlan((), PlainReader, None)


def test_auto_is_free_unless_a_tool_is_strict() -> None:
    free = plan(use(tools=[WEATHER, PING]))
    assert free.template_tools == tuple(tool.to_template() for tool in use(tools=[WEATHER, PING]).tools)
    assert free.grammar is None
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    made = plan(use(tools=[strict, PING]))
    assert made.grammar_param == "tools"
    text = json.dumps(tree(made))
    assert json.dumps(SCHEMA) in text
    assert '{"schema": {"type": "object"}}' in text  # any arguments for the other tool
    assert {"free": ["<tool_call>"]} in tree(made)["sequence"]


def test_required_and_named_are_held_to_the_schemas_of_what_may_be_called() -> None:
    required = json.dumps(tree(plan(use(tools=[WEATHER, PING], tool_choice="required"))))
    assert json.dumps(SCHEMA) in required
    assert "ping" in required
    assert "free" not in required
    named = tree(plan(use(tools=[WEATHER, PING], tool_choice=NAMED)))
    assert "get_weather" not in json.dumps(named)
    assert "repeat" not in json.dumps(named)  # one call
    single = tree(plan(use(tools=[WEATHER, PING], tool_choice="required", parallel_tool_calls=False)))
    assert "repeat" not in json.dumps(single)


def parts_of(made: ReplyPlan, text: str) -> list[ReplyPart]:
    reader = made.new_reader()
    return [*reader.feed(text), *reader.end()]


def test_without_parallel_calls_only_the_first_is_told() -> None:
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    made = plan(use(tools=[PING], parallel_tool_calls=False))
    assert [part for part in parts_of(made, call * 3) if isinstance(part, CallBegun)] == [CallBegun(0, "ping")]


def test_every_choice_has_a_reader_of_its_own() -> None:
    made = plan(use(tools=[PING]))
    assert made.new_reader() is not made.new_reader()


def test_a_model_whose_calls_nobody_reads_gets_no_tools() -> None:
    with pytest.raises(RequestError, match="no parser is known to read; serve it with --tool-call-parser") as caught:
        plan(use(tools=[PING]), setting={"tool_parser": None})
    assert (caught.value.failure.param, caught.value.failure.code) == ("tools", "no_tool_parser")
    assert plan(use(tools=[PING], tool_choice="none"), setting={"tool_parser": None}).grammar is None


def test_models_choose_by_themselves_unless_the_operator_forbids_it() -> None:
    with pytest.raises(RequestError, match="--no-enable-auto-tool-choice") as caught:
        plan(use(tools=[PING]), setting={"auto_tool_choice": False})
    assert caught.value.failure.param == "tool_choice"
    assert plan(use(tools=[PING], tool_choice="required"), setting={"auto_tool_choice": False}).grammar is not None


def test_thinking_is_read_apart_and_left_out_where_nobody_wants_it() -> None:
    thinks = {"reasoning_parser": DeepSeekR1("")}
    text = "<think>a</think>b"
    assert parts_of(plan(ToolUse(), setting=thinks), text) == [ReasoningPart("a"), ContentPart("b")]
    assert parts_of(plan(ToolUse(), setting=thinks, wants_reasoning=False), text) == [ContentPart("b")]
    opened = {**thinks, "prompt_end": lambda prompt: str(prompt.kwargs.get("end", ""))}
    asked = ChatPrompt(({"role": "user", "content": "x"},), kwargs={"end": "<think>\n"})
    assert parts_of(plan(ToolUse(), setting=opened, prompt=asked), "a</think>b") == [
        ReasoningPart("a"),
        ContentPart("b"),
    ]
    assert parts_of(plan(ToolUse(), setting=opened), "a</think>b") == [ContentPart("a</think>b")]


def test_a_model_may_think_before_it_must_call() -> None:
    made = plan(use(tools=[PING], tool_choice="required"), setting={"reasoning_parser": DeepSeekR1("")})
    plain, thinking = tree(made)["any_of"]
    assert plain == tree(plan(use(tools=[PING], tool_choice="required")))
    assert thinking["sequence"][0] == {"literal": "<think>"}
    assert thinking["sequence"][1]["sequence"][-1] == plain


def test_markers_that_are_control_tokens_must_be_shown() -> None:
    assert not plan(use(tools=[PING])).shows_control
    assert plan(use(tools=[PING]), setting={"tool_parser": Mistral("")}).shows_control
    assert not plan(ToolUse(), setting={"tool_parser": Mistral("")}).shows_control
    assert plan(ToolUse(), setting={"reasoning_parser": MistralThink("")}).shows_control


OBJECT = (GrammarSource("json_schema", '{"type":"object"}'), "response_format.json_schema.schema")


def test_an_answer_that_must_look_like_something_may_be_a_call_instead() -> None:
    made = plan(use(tools=[PING]), structured=OBJECT)
    calls, answer = tree(made)["any_of"]
    assert answer == {"schema": {"type": "object"}}
    assert "free" not in json.dumps(calls)
    assert made.grammar_param == OBJECT[1]


def test_tools_that_take_too_large_a_grammar_are_refused_by_their_field() -> None:
    function = {**WEATHER["function"], "strict": True, "parameters": {"type": "object", "description": "x" * (1 << 20)}}
    with pytest.raises(RequestError) as caught:
        plan(use(tools=[{"type": "function", "function": function}]))
    assert (caught.value.failure.param, caught.value.failure.code) == ("tools", "grammar_too_large")


def test_a_constraint_alone_stays_as_it_is() -> None:
    made = plan(ToolUse(), structured=OBJECT)
    assert (made.grammar, made.grammar_param, made.new_reader) == (*OBJECT, PlainReader)
    thinking = plan(ToolUse(), structured=OBJECT, setting={"reasoning_parser": DeepSeekR1("")})
    assert tree(thinking)["any_of"][0] == {"schema": {"type": "object"}}


def test_an_answer_under_a_regular_expression_is_read_as_it_is() -> None:
    pattern = (GrammarSource("regex", "<think>"), "structured_outputs.regex")
    made = plan(ToolUse(), structured=pattern, setting={"reasoning_parser": DeepSeekR1("")})
    assert (made.grammar, made.new_reader) == (pattern[0], PlainReader)
    with pytest.raises(RequestError, match="cannot call tools") as caught:
        plan(use(tools=[PING]), structured=pattern)
    assert caught.value.failure.param == "structured_outputs.regex"


def test_a_forced_call_and_a_constraint_exclude_each_other() -> None:
    for choice in ("required", NAMED):
        with pytest.raises(RequestError, match="leave one of them out") as caught:
            plan(use(tools=[PING], tool_choice=choice), structured=OBJECT)
        assert (caught.value.failure.status, caught.value.failure.param) == (400, "tool_choice")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["f", "string", "object", "auto", "#/$defs/A", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "$ref", "$defs", "A", "enum", "anyOf", "const", "f"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(BUILT_IN)), parameters=JSON, choice=JSON, is_strict=st.booleans(), text=st.text())
def test_whatever_a_schema_is_it_is_kept_or_refused(
    name: str, parameters: Any, choice: Any, is_strict: bool, text: str
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": is_strict}}]
    tagged = "<tool_call><function=f><parameter=f>1</parameter><parameter=A>x</parameter></function>"
    for wanted in (choice, "auto", "required"):
        with suppress(RequestError):  # anything else would be a fault
            made = plan(use(tools=tools, tool_choice=wanted), setting={"tool_parser": BUILT_IN[name]("")})
            for answer in (text, tagged):
                parts_of(made, answer)
