"""A real browser types into the page and reads an answer while it streams."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import serving

CHROMIUM_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_S = 120  # on a loaded machine
WAIT = """
const done = arguments[0];
const look = () => { const value = (%s); if (value) { observer.disconnect(); done(value); } };
const observer = new MutationObserver(look);
observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
look();
"""


class Browser:
    """The few WebDriver commands that the test needs (W3C WebDriver, section 6)."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = session

    def command(self, path: str, **body: Any) -> Any:
        answer = self._driver.post(f"/session/{self._session}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def script(self, source: str) -> Any:
        return self.command("execute/sync", script=source, args=[])

    def type_into(self, selector: str, text: str) -> None:
        element = self.command("element", using="css selector", value=selector)
        self.command(f"element/{next(iter(element.values()))}/value", text=text)

    def click(self, selector: str) -> None:
        element = self.command("element", using="css selector", value=selector)
        self.command(f"element/{next(iter(element.values()))}/click")

    def wait_for(self, expression: str) -> Any:
        """The value of a JavaScript expression once it is truthy; it is looked at whenever the page changes."""
        return self.command("execute/async", script=WAIT % expression, args=[])


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    driver_path, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    assert driver_path, "install Debian's package chromium-driver"
    assert chromium, "install Debian's package chromium"
    process = subprocess.Popen([driver_path, "--port=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = next(found[1] for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        options = {"binary": chromium, "args": [*CHROMIUM_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as driver:
            answer = driver.post("/session", json=wanted)
            if answer.status_code != 200:
                answer = driver.post("/session", json=wanted)
            session = answer.json()["value"]["sessionId"]
            try:
                yield Browser(driver, session)
            finally:
                driver.delete(f"/session/{session}")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.mark.usefixtures("demo_model")
def test_a_question_typed_into_the_page_is_answered_word_by_word(tmp_path: Path) -> None:
    length = ("--max-model-len", "96")  # the page lets a model answer as it likes, and this one may go on for minutes
    flags = (*length, "--kv-cache-bytes", "256MiB", "--log-level", "warning")
    with serving(tmp_path / "stderr", flags) as (url, _), browsing(tmp_path / "profile") as browser:
        browser.command("url", url=url)
        browser.command("timeouts", script=60_000)
        browser.wait_for("document.querySelector('#model').value === 'demo'")
        browser.type_into("#prompt", "Name three primary colors.")
        browser.click("#send")
        text = "(document.querySelector('.message.assistant') || {textContent: ''}).textContent"
        early = browser.wait_for(text)
        browser.wait_for("document.querySelector('#stop').hidden && !document.querySelector('.writing')")
        whole = browser.script(f"return {text}")
        assert len(early) < len(whole), "the answer came in one piece"
        assert whole.startswith(early.rstrip("…▍ "))
        errors = browser.script("return document.querySelector('#status').textContent")
        assert "error" not in errors.lower()
