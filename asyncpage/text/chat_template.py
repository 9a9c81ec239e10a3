"""A model's chat template: a conversation in, the text of a prompt out.

The tokenizer actor renders with it, in slices.

INVARIANT: a rendering changes nothing, ends within its budget, and whatever goes wrong in it is that request's
error: the template belongs to the model, but what it is given comes from a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, RequestError, UsageError
from asyncpage.messages import ChatPrompt
from asyncpage.text.control_guard import ControlGuard, strings_in
from asyncpage.text.folder_vocabulary import MAX_TEMPLATE_BYTES, read_template
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.reasoning.registry import choose_reasoning_parser
from asyncpage.text.template_budget import Budget, TemplateTooCostly
from asyncpage.text.template_charges import MeteredContext
from asyncpage.text.template_sandbox import TemplateSandbox, time_format
from asyncpage.text.template_traits import TemplateTraits, find_end, find_traits, is_result, plain_options
from asyncpage.text.tools.hermes import Hermes
from asyncpage.text.tools.parser import ToolParser
from asyncpage.text.tools.registry import AUTO, choose_tool_parser
from asyncpage.text.tools.telling import as_template_shows, speaks_of_tools
from asyncpage.text.vocabulary import Vocabulary
from asyncpage.text.vocabulary_source import load_vocabulary

UNITS_A_VALUE = 50  # of the budget, for each value in a conversation: templates do some ten steps a message
CHARACTERS_A_UNIT = 16  # and for its text, which goes through some ten operations

MOST_ENDS = 64
"""Ways in which prompts end that are kept, one for each set of template variables."""

_REASONING = ("reasoning_content", "thinking", "reasoning")  # names that clients and templates have for one thing


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt's text. `guard` is a character to take out after control tokens were looked for, "" for none."""

    text: str
    guard: str


@dataclass(frozen=True, slots=True)
class Parsers:
    """Names of the parsers of a model's answers; "auto" chooses by its chat template."""

    tools: str = AUTO
    reasoning: str = AUTO

    @classmethod
    def of(cls, config: EngineConfig) -> Parsers:
        return cls(config.tool_call_parser, config.reasoning_parser)


class ChatTemplate:
    """The compiled template, and the one for conversations with tools where a model has another for them.

    `source`: the Jinja text of the first. `is_guarded` False lets control tokens in a conversation's strings be
    control tokens. `parsers`: what reads the model's calls of tools and its thinking.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        vocabulary: Vocabulary,
        *,
        is_guarded: bool = True,
        parsers: Parsers | None = None,
    ) -> None:
        """Errors: `ModelError` for a template that does not compile."""
        self._parsers = parsers or Parsers()
        self._tool_source = templates.get("tool_use", templates["default"])
        sandbox = TemplateSandbox()
        self.source = templates["default"]
        self._default = _compile(sandbox, templates["default"], vocabulary.source)
        tool_use = templates.get("tool_use")
        self._tool_use = self._default if tool_use is None else _compile(sandbox, tool_use, vocabulary.source)
        self._named = dict(vocabulary.named)
        self._ends = lru_cache(MOST_ENDS)(partial(find_end, self._trial))
        controls = (token.text for token in vocabulary.added if token.is_special) if is_guarded else ()
        self._guard = ControlGuard(controls, vocabulary.is_nfc)

    @cached_property
    def traits(self) -> TemplateTraits:
        """What the template can show of tools."""
        return find_traits(self._trial)

    @cached_property
    def tool_parser(self) -> ToolParser | None:
        """What reads the model's calls of tools, None where no parser is known to.

        Errors: `UsageError` for a name that no parser has.
        """
        return choose_tool_parser(self._parsers.tools, self._tool_source, self.traits)

    @cached_property
    def reasoning_parser(self) -> ReasoningParser | None:
        """What tells the model's thinking from its answer, None where it does not think aloud.

        Errors: `UsageError` for a name that no parser has.
        """
        return choose_reasoning_parser(self._parsers.reasoning, self._tool_source)

    def prompt_end(self, prompt: ChatPrompt) -> str:
        """What the template writes for the answer to begin behind, in a conversation that is like `prompt`'s."""
        if prompt.continue_final_message:
            return str(prompt.messages[-1]["content"])
        if not prompt.add_generation_prompt:
            return ""
        return self._ends(is_result(prompt.messages[-1]), plain_options(prompt.kwargs))

    def render(self, prompt: ChatPrompt, *, wall_s: float) -> RenderedPrompt:
        """The prompt's text, in one go. Parameters and errors as in `render_slices`."""
        return finished(self.render_slices(prompt, wall_s=wall_s, slice_s=math.inf, now=float))

    def render_slices(
        self, prompt: ChatPrompt, *, wall_s: float, slice_s: float, now: Callable[[], float]
    ) -> Generator[None, None, RenderedPrompt]:
        """The prompt's text, yielding about every `slice_s` seconds by the clock `now`.

        `wall_s`: seconds since the epoch, for templates that tell the date.
        Errors: `RequestError` (400) when the template refuses the conversation, fails on it or costs too much.
        """
        if speaks_of_tools(prompt):
            prompt = as_template_shows(prompt, self.traits, self.tool_parser or Hermes(""))
        return self._rendering(prompt, wall_s, slice_s, now)

    def _trial(self, prompt: ChatPrompt) -> str:
        return finished(self._rendering(prompt, 0.0, math.inf, float)).text

    def _rendering(
        self, prompt: ChatPrompt, wall_s: float, slice_s: float, now: Callable[[], float]
    ) -> Generator[None, None, RenderedPrompt]:
        """What the template makes of the very `prompt`."""
        messages = [_as_templates_expect(message) for message in prompt.messages]
        given = {"messages": messages, "tools": list(prompt.tools) or None, "kwargs": dict(prompt.kwargs)}
        strings, values = strings_in(given)
        guard = self._guard.choose(strings)
        given = self._guard.plain_value(given, guard)
        tag = ""
        if prompt.continue_final_message:
            tag = self._guard.choose(strings, guard)
            _mark_end(given["messages"], prompt, tag)
        budget = Budget(UNITS_A_VALUE * values + sum(map(len, strings)) // CHARACTERS_A_UNIT)
        template = self._tool_use if prompt.tools else self._default
        context = template.new_context(
            {
                **self._named,
                "strftime_now": time_format(wall_s),
                "documents": None,
                **given["kwargs"],
                "messages": given["messages"],
                "tools": given["tools"],
                "add_generation_prompt": prompt.add_generation_prompt,
            }
        )
        assert isinstance(context, MeteredContext)
        context.budget = budget
        chunks: list[str] = []
        deadline = now() + slice_s
        try:
            for chunk in template.root_render_func(context):
                chunks.append(chunk)
                budget.spend(len(chunk) // CHARACTERS_A_UNIT)
                if now() >= deadline:
                    yield
                    deadline = now() + slice_s
        except TemplateTooCostly as error:
            raise _refusal(f"costs too much: {error}") from None
        except TemplateError as error:
            raise _refusal(f"refuses it: {error.message}") from error
        except RecursionError:
            raise _refusal("calls itself without end") from None
        except Exception as error:
            # A template is a program: it can raise whatever Python's operators raise.
            raise _refusal(f"fails on it: {type(error).__name__}: {error}") from error
        text = "".join(chunks)
        if tag:
            text = _cut_at_end(text, tag)
        return RenderedPrompt(text, guard if guard in text else "")


def load_chat_template(
    path: Path,
    override: str | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    is_guarded: bool = True,
    parsers: Parsers | None = None,
) -> ChatTemplate | None:
    """The chat template of a GGUF file or model folder, None where it has none.

    `override`: a Jinja file to use instead. `vocabulary`: that of `path`, if it has been read already. The rest is as
    for `ChatTemplate`. Errors: `UsageError` when the override cannot be read or no parser has that name, `ModelError`
    for a template that does not compile.
    """
    vocabulary = load_vocabulary(path) if vocabulary is None else vocabulary
    templates = vocabulary.templates
    if override is not None:
        try:
            templates = {"default": read_template(Path(override))}
        except ModelError as error:
            raise UsageError(f"--chat-template: {error}") from None
    if "default" not in templates:
        return None
    template = ChatTemplate(templates, vocabulary, is_guarded=is_guarded, parsers=parsers)
    _ = template.tool_parser, template.reasoning_parser  # chosen here, before anybody waits for them
    return template


def finished(slices: Generator[None, None, RenderedPrompt]) -> RenderedPrompt:
    """What a rendering in slices comes to."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            rendered: RenderedPrompt = end.value
            return rendered


def _compile(sandbox: TemplateSandbox, source: str, file: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise ModelError(f"{file}: the chat template has {len(source)} characters, at most {MAX_TEMPLATE_BYTES}")
    try:
        return sandbox.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelError(f"{file}: line {error.lineno} of the chat template: {error.message}") from None
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        # What Python's own compiler says of a program that is nested too deeply.
        raise ModelError(f"{file}: the chat template does not compile: {type(error).__name__}: {error}") from None


def _as_templates_expect(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are null, which templates would write as "None"; reasoning under the usual name too."""
    found = {key: value for key, value in message.items() if value is not None}
    reasoning = next((found[name] for name in _REASONING if name in found), None)
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    return found


def _mark_end(messages: list[dict[str, Any]], prompt: ChatPrompt, tag: str) -> None:
    """Put `tag` behind the final message, to find in the text where it ends."""
    if prompt.add_generation_prompt:
        raise RequestError(
            "continue_final_message needs add_generation_prompt to be false", param="continue_final_message"
        )
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise RequestError(
            "continue_final_message needs a final message with text to continue", param="continue_final_message"
        )
    # The space behind shows whether the template trims.
    messages[-1]["content"] = f"{content}{tag} "


def _cut_at_end(text: str, tag: str) -> str:
    """The text up to the final message's last word; white space that the template would have trimmed goes too."""
    before, found, behind = text.rpartition(tag)
    if not found:
        raise RequestError(
            "continue_final_message: the chat template does not put out the final message as it is",
            param="continue_final_message",
        )
    return before if behind.startswith(" ") else before.rstrip()


def _refusal(reason: str) -> RequestError:
    return RequestError(f"the chat template {reason}", code="chat_template_error", param="messages")
