"""The chat page: its files are complete, load nothing from elsewhere and fit together."""

import re
from importlib.resources import files

from asyncpage.server.static_page import PAGE_FILES

PAGE = files("asyncpage.server").joinpath("page")


async def test_every_file_of_the_page_is_served_with_its_policy(site) -> None:
    for path, file, content_type in PAGE_FILES:
        answer = await site.get(path)
        assert answer.status == 200
        assert answer.headers["Content-Type"] == f"{content_type}; charset=utf-8"
        assert answer.text == PAGE.joinpath(file).read_text()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_no_file_of_the_page_is_forgotten() -> None:
    assert sorted(entry.name for entry in PAGE.iterdir()) == sorted(file for _, file, _ in PAGE_FILES)


def test_the_page_names_no_other_host_and_runs_no_inline_code() -> None:
    for _, file, _ in PAGE_FILES:
        text = PAGE.joinpath(file).read_text()
        assert set(re.findall(r"https?://[^'\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|javascript:", text)
    html = PAGE.joinpath("index.html").read_text()
    assert not re.search(r"\son\w+=|<style|style=|<script(?![^>]*src=)", html)


def test_everything_the_page_links_to_is_served() -> None:
    served = {path for path, _, _ in PAGE_FILES}
    html = PAGE.joinpath("index.html").read_text()
    linked = {link for link in re.findall(r'(?:href|src)="([^"]+)"', html) if not link.startswith("data:")}
    imported = {
        "/page/" + name
        for _, file, kind in PAGE_FILES
        if kind == "text/javascript"
        for name in re.findall(r'from "\./([^"]+)"', PAGE.joinpath(file).read_text())
    }
    assert linked | imported <= served
    assert served <= linked | imported | {"/"}


def test_every_element_that_the_script_names_is_in_the_page() -> None:
    html = PAGE.joinpath("index.html").read_text()
    ids = set(re.findall(r'\bid="([^"]+)"', html))
    script = PAGE.joinpath("chat.js").read_text()
    assert set(re.findall(r'element\("([^"]+)"\)', script)) <= ids
    assert {"prompt", "send", "stop"} <= ids
    labelled = set(re.findall(r'\bfor="([^"]+)"', html))
    assert {"prompt", "model", "key"} <= labelled
    assert re.search(r'<textarea id="prompt"', html)
    assert re.search(r'<button id="send"', html)
    assert "`message ${role}`" in script
