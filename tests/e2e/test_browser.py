"""A real browser, the real server and the demo model: an answer read while it streams, and the engine seen at work."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.browser import DOWN, ENTER, ESCAPE, RIGHT, browsing
from tests.e2e.serving import serving

FLAGS = ("--kv-cache-bytes", "256MiB", "--log-level", "warning")
HELD = "Number(document.querySelector('#legend .key b').textContent) || 0"


@pytest.mark.usefixtures("demo_model")
def test_a_question_typed_into_the_page_is_answered_word_by_word(tmp_path: Path) -> None:
    length = ("--max-model-len", "96")  # the page lets a model answer as it likes, and this one may go on for minutes
    with serving(tmp_path / "stderr", (*length, *FLAGS)) as (url, _), browsing(tmp_path / "profile") as browser:
        browser.open(url)
        browser.wait_for("document.querySelector('#model').value === 'demo'")
        browser.type_into("#prompt", "Name three primary colors.")
        browser.click("#send")
        text = "(document.querySelector('.assistant .said') || {textContent: ''}).textContent"
        early = browser.wait_for(text)
        browser.wait_for("document.querySelector('#stop').hidden && !document.querySelector('.writing')")
        whole = browser.script(f"return {text}")
        assert len(early) < len(whole), "the answer came in one piece"
        assert browser.count(".error") == 0
        note = browser.text_of(".assistant .note")
        assert "tokens/s" in note
        assert "first after" in note


@pytest.mark.usefixtures("demo_model")
def test_the_chart_room_shows_a_request_while_it_runs_until_the_server_drains(tmp_path: Path) -> None:
    body = {"prompt": "The sea " * 40, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    drain = ("--drain-timeout", "0")
    with serving(tmp_path / "stderr", (*drain, *FLAGS)) as (url, pid), browsing(tmp_path / "profile") as browser:
        browser.open(f"{url}/chart")
        browser.wait_for("document.querySelector('#status').dataset.state === 'ready'")
        assert browser.script(f"return {HELD}") == 0
        with (
            httpx.Client(base_url=url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            held = browser.wait_for(HELD)
            assert held >= 5, "the prompt alone has 80 tokens"
            caption = browser.script("return document.querySelector('#steps-caption').textContent")
            browser.wait_for(f"document.querySelector('#steps-caption').textContent !== {caption!r}")
            browser.wait_for(f"{HELD} > {held}")  # the answer grows, and so do its blocks
            running = "document.querySelector('#soundings dd').textContent"
            assert browser.script(f"return {running}") == "1"
            cargo = "[...document.querySelectorAll('#topology .cargo')].map((text) => text.textContent)"
            browser.wait_for(f"{cargo}.filter((text) => / (B|KiB) a step$/.test(text)).length === 2")
            # Block 1 is the first of the first prompt; by mouse, then its neighbour by keys.
            browser.script(
                "const box = document.querySelector('#table').getBoundingClientRect();"
                "document.querySelector('#table').dispatchEvent("
                "  new MouseEvent('click', {clientX: box.left + 3, clientY: box.top + 3, bubbles: true}));"
            )
            card = browser.wait_for(
                "!document.querySelector('#card').hidden && document.querySelector('#card').textContent"
            )
            assert "Block 1" in card
            assert "Tokens (16 of 16)" in card
            assert "sea" in card
            browser.press(ESCAPE)
            browser.wait_for("document.querySelector('#card').hidden")
            browser.press(RIGHT + ENTER)
            browser.wait_for("document.querySelector('#card h2')?.textContent === 'Block 2'")
            assert "behind 1 other" in browser.text_of("#card")
            browser.press(DOWN)
            assert "next to" in browser.text_of("#card")
            os.kill(pid, signal.SIGTERM)
            browser.wait_for("document.querySelector('#status').dataset.state === 'ended'")
            assert browser.count("#card:not([hidden])") == 1, "what was seen last stays to be read"
