"""A real browser for tests: Chromium behind the few WebDriver commands that they need (W3C WebDriver, section 6)."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

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
ENTER, ESCAPE, TAB, SHIFT, RIGHT, DOWN = "\ue007", "\ue00c", "\ue004", "\ue008", "\ue014", "\ue015"
WAIT = """
const done = arguments[0];
const look = () => { const value = (%s); if (value) { observer.disconnect(); done(value); } };
const observer = new MutationObserver(look);
observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
look();
"""


class Browser:
    """One tab."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver = driver
        self._session = session

    def command(self, path: str, **body: Any) -> Any:
        answer = self._driver.post(f"/session/{self._session}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self.command("goog/cdp/execute", cmd=command, params=parameters)

    def open(self, url: str, *, afresh: bool = False) -> None:
        """`afresh`: nothing is kept of an earlier visit."""
        self.command("url", url=url)
        if afresh:
            self.script("localStorage.clear(); sessionStorage.clear()")
            self.command("refresh")

    def script(self, source: str, *arguments: Any) -> Any:
        return self.command("execute/sync", script=source, args=list(arguments))

    def type_into(self, selector: str, text: str) -> None:
        element = self.command("element", using="css selector", value=selector)
        self.command(f"element/{next(iter(element.values()))}/value", text=text)

    def click(self, selector: str) -> None:
        element = self.command("element", using="css selector", value=selector)
        self.command(f"element/{next(iter(element.values()))}/click")

    def press(self, keys: str, *, with_shift: bool = False) -> None:
        """Press these keys one after another, wherever the focus is."""
        moves = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        if with_shift:
            moves = [{"type": "keyDown", "value": SHIFT}, *moves, {"type": "keyUp", "value": SHIFT}]
        self.command("actions", actions=[{"type": "key", "id": "keys", "actions": moves}])

    def wait_for(self, expression: str) -> Any:
        """The value of a JavaScript expression once it is truthy; it is looked at whenever the page changes."""
        return self.command("execute/async", script=WAIT % expression, args=[])

    def text_of(self, selector: str) -> str:
        found: str = self.script("return document.querySelector(arguments[0]).textContent", selector)
        return found

    def count(self, selector: str) -> int:
        found: int = self.script("return document.querySelectorAll(arguments[0]).length", selector)
        return found


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
            browser = Browser(driver, session)
            browser.command("timeouts", script=60_000)
            try:
                yield browser
            finally:
                driver.delete(f"/session/{session}")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
