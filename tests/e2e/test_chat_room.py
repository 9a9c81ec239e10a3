"""The chat room in a real browser, over a server whose engine answers with the question's own text."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from asyncpage.messages import ChatPrompt
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer
from tests.e2e.browser import ENTER, ESCAPE, TAB, Browser, browsing
from tests.server.conftest import EchoEngine

T = TypeVar("T")

IDLE = "document.querySelector('#stop').hidden && !document.querySelector('.writing')"
KEPT = "asyncpage.conversation"


class Echo:
    """A server in a thread of its own; `call` reaches into its loop."""

    def __init__(self, url: str, engine: EchoEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.engine = engine
        self._loop = loop

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(60)

    def until(self, is_true: Callable[[], bool]) -> None:
        asyncio.run_coroutine_threadsafe(self.engine.until(is_true), self._loop).result(60)


@contextlib.contextmanager
def echoing(**settings: Any) -> Iterator[Echo]:
    started: list[Echo] = []
    ready, ended = threading.Event(), asyncio.Event()

    async def serve() -> None:
        engine = EchoEngine()
        server = HttpServer(engine, ServerConfig(port=0, log_level="error", **settings))
        await server.start()
        started.append(Echo(server.url, engine, asyncio.get_running_loop()))
        ready.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield started[0]
    finally:
        started[0].call(ended.set)
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def echo(browser: Browser) -> Iterator[Echo]:
    """A server, and the browser on its page as on a first visit."""
    with echoing() as echo:
        browser.open(echo.url, afresh=True)
        browser.wait_for("document.querySelector('#model').value === 'echo'")
        yield echo


def say(browser: Browser, text: str) -> None:
    browser.script("document.querySelector('#prompt').value = arguments[0]", text)
    browser.click("#send")


def ask(browser: Browser, text: str) -> None:
    """Ask, and wait for the whole answer."""
    asked = browser.count(".assistant .note")
    say(browser, text)
    browser.wait_for(f"document.querySelectorAll('.assistant .note').length === {asked + 1} && {IDLE}")


def messages(browser: Browser) -> list[str]:
    found: list[str] = browser.script(
        "return [...document.querySelectorAll('.message .said')].map((said) => said.textContent)"
    )
    return found


def test_an_answer_is_drawn_as_markdown_and_measured(browser: Browser, echo: Echo) -> None:
    ask(browser, "# Title\n\n- *one*\n- `two`\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nsee https://example.com/x")
    drawn = ".assistant .said "
    for selector in ("h3", "ul li em", "ul li code", "table td.align-right", 'a[href="https://example.com/x"]'):
        assert browser.count(drawn + selector) == 1, selector
    assert browser.count('.said a:not([rel~="noopener"])') == 0
    note = browser.text_of(".assistant .note")
    for part in ("tokens ·", "tokens/s", "first after", "prompt of"):
        assert part in note
    ask(browser, "again")
    first = browser.script("return document.querySelector('.assistant .said').textContent")
    assert first.startswith("Title"), "the first answer stays as it was"


ATTACK = """<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
<svg onload="window.hacked = 3">
[one](javascript:window.hacked=4) ![two](data:text/html,x)

```"><script>window.hacked = 5</script>
</pre><script>window.hacked = 6</script>
```
| <b onclick="window.hacked=7">x</b> | y |
|---|---|
| <iframe src="javascript:window.hacked=8"> | z |"""


def test_markup_in_an_answer_is_inert(browser: Browser, echo: Echo) -> None:
    ask(browser, ATTACK)
    browser.command("refresh")
    browser.wait_for("document.querySelectorAll('.message').length === 2")
    for selector in ("script", "img", "svg", "iframe", "b", "a", "[onclick], [onerror], [onload], [style]"):
        assert browser.count(f".message .said {selector}") == 0, selector
    assert browser.script("return window.hacked === undefined")
    assert "<img src=x onerror" in browser.text_of(".assistant .said")


def test_the_stop_button_ends_an_answer_and_keeps_what_came(browser: Browser, echo: Echo) -> None:
    echo.call(echo.engine.hold)
    say(browser, "a long story")
    echo.until(lambda: bool(echo.engine.runs))
    for _ in range(6):
        echo.call(echo.engine.step)
    browser.wait_for("(document.querySelector('.writing .said') || {textContent: ''}).textContent.length >= 6")
    assert browser.script("return document.querySelector('#messages').getAttribute('aria-busy')") == "true"
    browser.click("#stop")
    browser.wait_for(IDLE)
    echo.until(lambda: bool(echo.engine.cancelled))
    assert messages(browser)[1] == "a long"
    assert "stopped" in browser.text_of(".assistant .note")
    assert browser.script("return document.querySelector('#messages').getAttribute('aria-busy')") == "false"
    echo.call(echo.engine.release)
    ask(browser, "and on")
    prompt = echo.engine.submitted[-1][0]
    assert isinstance(prompt, ChatPrompt)
    assert [message["content"] for message in prompt.messages] == ["a long story", "a long", "and on"]


def test_a_question_that_is_stopped_before_its_answer_goes_back(browser: Browser, echo: Echo) -> None:
    echo.call(echo.engine.hold)
    say(browser, "never mind")
    echo.until(lambda: bool(echo.engine.runs))
    browser.press(ESCAPE)
    browser.wait_for(f"{IDLE} && document.querySelector('#prompt').value === 'never mind'")
    assert messages(browser) == []


def test_an_answer_is_made_anew_from_the_cache(browser: Browser, echo: Echo) -> None:
    ask(browser, "the same question again")
    assert "cache" not in browser.text_of(".assistant .note")
    browser.click("#regenerate")
    browser.wait_for(f"{IDLE} && document.querySelector('.assistant .note')?.textContent.includes('from the cache')")
    assert messages(browser) == ["the same question again"] * 2
    assert len(echo.engine.submitted) == 2


def test_a_conversation_outlives_a_reload_and_is_gone_with_a_new_chat(browser: Browser, echo: Echo) -> None:
    ask(browser, "first")
    ask(browser, "second")
    before = messages(browser)
    browser.command("refresh")
    browser.wait_for("document.querySelectorAll('.message').length === 4")
    assert messages(browser) == before == ["first", "first", "second", "second"]
    browser.click("#clear")
    browser.wait_for("!document.querySelector('.message') && !document.querySelector('#welcome').hidden")
    browser.command("refresh")
    assert browser.script(f"return localStorage.getItem('{KEPT}')") == "[]"
    assert messages(browser) == []


def test_a_question_is_edited_and_sent_again(browser: Browser, echo: Echo) -> None:
    ask(browser, "first")
    ask(browser, "secnod")
    browser.click(".message.user:nth-of-type(3) button")
    browser.wait_for("document.querySelector('#prompt').value === 'secnod'")
    assert messages(browser) == ["first", "first"]
    ask(browser, "second")
    assert messages(browser) == ["first", "first", "second", "second"]


def test_the_settings_are_sent_and_kept_and_a_wrong_one_is_told(browser: Browser, echo: Echo) -> None:
    browser.click("#settings-toggle")
    browser.type_into("#system", "Be brief.")
    for field, text in (("temperature", "3"), ("top-p", "0.5"), ("max-tokens", "4"), ("seed", "11")):
        browser.type_into(f"#{field}", text)
    browser.type_into("#stop-strings", "zz\nyy")
    say(browser, "abcdefgh")
    assert (
        browser.wait_for("document.querySelector('.error')?.textContent") == "temperature takes a number from 0 to 2."
    )
    assert browser.script("return document.activeElement.id") == "temperature"
    assert not echo.engine.submitted
    browser.script("document.activeElement.value = ''")
    browser.type_into("#temperature", "0.25")
    ask(browser, "abcdefgh")
    prompt, sampling, _ = echo.engine.submitted[0]
    assert isinstance(prompt, ChatPrompt)
    assert [(message["role"], message["content"]) for message in prompt.messages] == [
        ("system", "Be brief."),
        ("user", "abcdefgh"),
    ]
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0.25, 0.5, 4, 11)
    assert tuple(sampling.stop) == ("zz", "yy")
    assert messages(browser)[1] == "abcd"
    assert "cut at the length limit" in browser.text_of(".assistant .note")
    browser.command("refresh")
    assert browser.script("return document.querySelector('#seed').value") == "11"


def test_a_full_queue_is_told_with_when_to_try_again(browser: Browser, echo: Echo) -> None:
    echo.engine.max_queue = 0
    say(browser, "too many")
    error = browser.wait_for("document.querySelector('.error')?.textContent")
    assert error == "The server is busy: the waiting queue of the scheduler is full. Try again in 3 s."
    assert browser.script("return document.querySelector('#prompt').value") == "too many"
    echo.engine.max_queue = 9
    ask(browser, "too many")
    assert browser.count(".error") == 0


def test_an_engine_that_restarts_is_told(browser: Browser, echo: Echo) -> None:
    echo.engine.state = "restarting"
    say(browser, "now?")
    error = browser.wait_for("document.querySelector('.error')?.textContent")
    assert error.startswith("Not ready: the executor is being restarted.")


def test_a_key_is_asked_for_and_kept_for_this_tab_alone(browser: Browser) -> None:
    with echoing(api_key=("s3cret",)) as echo:
        browser.open(echo.url, afresh=True)
        browser.wait_for("!document.querySelector('#key-form').hidden")
        assert browser.script("return document.activeElement.id") == "key"
        browser.type_into("#key", "wrong" + ENTER)
        browser.wait_for("document.querySelector('#key-reason').textContent")
        browser.type_into("#key", "s3cret" + ENTER)
        browser.wait_for("document.querySelector('#model').value === 'echo'")
        ask(browser, "hello")
        browser.command("refresh")
        browser.wait_for("document.querySelector('#model').value === 'echo'")
        assert browser.count("#key-form:not([hidden])") == 0
        kept = browser.script("return JSON.stringify([{...localStorage}, location.href, document.cookie])")
        assert "s3cret" not in kept
        assert browser.script("return sessionStorage.getItem('asyncpage.key')") == "s3cret"


def test_code_is_copied(browser: Browser, echo: Echo) -> None:
    origin = {"origin": echo.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.devtools("Browser.grantPermissions", **origin)
    ask(browser, "```python\nx = 1 < 2\n  y\n```")
    assert browser.text_of(".code figcaption span") == "python"
    browser.click(".code button")
    browser.wait_for("document.querySelector('.code button').textContent === 'Copied'")
    copied = browser.command(
        "execute/async",
        script="navigator.clipboard.readText().then(arguments[0], (e) => arguments[0](String(e)))",
        args=[],
    )
    assert copied == "x = 1 < 2\n  y"


def test_reasoning_is_folded_and_calls_are_shown_as_such(browser: Browser, echo: Echo) -> None:
    kept = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "**a**",
            "reasoning": "<b>hm</b>",
            "calls": [{"name": "look", "arguments": '{"at": "<i>"}'}],
            "note": "n",
        },
    ]
    browser.script(f"localStorage.setItem('{KEPT}', arguments[0])", json.dumps(kept))
    browser.command("refresh")
    browser.wait_for("document.querySelector('.assistant')")
    assert browser.script("return document.querySelector('details.reasoning').open") is False
    assert browser.text_of(".thoughts") == "<b>hm</b>"
    assert browser.text_of(".call-name") == "look"
    assert browser.text_of(".call pre") == '{"at": "<i>"}'
    assert browser.count(".assistant .said strong") == 1


def test_everything_can_be_done_with_keys(browser: Browser, echo: Echo) -> None:
    focused = "return document.activeElement.id || document.activeElement.textContent"
    assert browser.script(focused) == "prompt"
    browser.press("hi there" + ENTER)
    browser.wait_for(f"document.querySelector('.assistant .note') && {IDLE}")
    assert browser.script(focused) == "prompt", "the next question can be typed at once"
    browser.press(TAB, with_shift=True)
    assert browser.script(focused) == "regenerate"
    browser.press(ENTER)
    browser.wait_for(f"document.querySelector('.assistant .note')?.textContent && {IDLE}")
    assert len(echo.engine.submitted) == 2
    browser.command("refresh")
    browser.wait_for("document.querySelector('#model').value === 'echo'")
    seen = []
    while not seen or seen[-1] != "To the message box":
        browser.press(TAB, with_shift=True)
        seen.append(browser.script(focused))
        assert len(seen) < 20
    assert seen[-7:] == ["clear", "settings-toggle", "model", "Chart room", "Chat", seen[-2], "To the message box"]
    assert "asyncpage" in seen[-2]
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.script(outline) != "none", "one sees where the focus is"


def test_it_fits_a_phone(browser: Browser, echo: Echo) -> None:
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.devtools("Emulation.setDeviceMetricsOverride", **phone)
    try:
        ask(browser, "a" * 90 + "\n\n```\n" + "x" * 90 + "\n```\n\n|" + "wide cell|" * 9 + "\n|" + "-|" * 9)
        browser.click("#settings-toggle")
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        scrolled, inner = browser.script(width)
        assert scrolled <= inner == 360
        sizes = browser.script(
            "return ['#send', '#clear', '#settings-toggle'].map((id) => document.querySelector(id).offsetHeight)"
        )
        assert min(sizes) >= 24  # WCAG 2.2, 2.5.8
    finally:
        browser.devtools("Emulation.clearDeviceMetricsOverride")


# The luminance of WCAG 2.x, of an element's text over the first ground behind it that is opaque.
CONTRAST = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b]
  .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
};
return Object.fromEntries(arguments[0].map((selector) => {
  const element = document.querySelector(selector);
  const [a, b] = [luminance(channels(getComputedStyle(element).color)), luminance(ground(element))];
  return [selector, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
}));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_written_can_be_read(browser: Browser, echo: Echo, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.devtools("Emulation.setEmulatedMedia", features=features)
    try:
        ask(browser, "> quote\n\n`code` [link](https://example.com)\n\n```\nx\n```")
        echo.engine.max_queue = 0
        say(browser, "more")
        browser.wait_for("document.querySelector('.error')")
        seen = [
            ".user .said",
            ".assistant .said",
            ".said blockquote",
            ".said code",
            ".said a",
            ".note",
            ".actions button",
        ]
        seen += [
            ".code pre",
            ".code button",
            ".error",
            "#hint",
            ".band nav a",
            ".band [aria-current]",
            "#clear",
            "#prompt",
        ]
        found = browser.script(CONTRAST, seen)
        assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
    finally:
        browser.devtools("Emulation.setEmulatedMedia", features=[])
