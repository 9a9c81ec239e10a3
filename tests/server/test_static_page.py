"""The page's two rooms: their files are complete, load nothing from elsewhere and fit together."""

import re
from importlib.resources import files
from posixpath import join, normpath

import pytest

from asyncpage.server.static_page import PAGE_FILES

PAGE = files("asyncpage.server").joinpath("page")
ROOMS = {"index.html": "chat.js", "chart.html": "chart.js"}
TEXTS = {file: PAGE.joinpath(file).read_text() for _, file, kind in PAGE_FILES if kind.startswith("text/")}
SCRIPTS = {file: text for file, text in TEXTS.items() if file.endswith(".js")}
MOST_LINES = 320
# A room stands at the root, or where a proxy shows the root: its links are relative.
LINK = re.compile(r'(?:href|src)="((?!data:|#)[^"]+)"')


async def test_every_file_of_the_page_is_served_with_its_policy(site) -> None:
    for path, file, content_type in PAGE_FILES:
        async with site.session.get(site.url + path) as answer:
            body = await answer.read()
        assert answer.status == 200
        is_text = content_type.startswith("text/")
        assert answer.headers["Content-Type"] == f"{content_type}; charset=utf-8" if is_text else content_type
        assert body == PAGE.joinpath(file).read_bytes()
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy.pop("img-src") == "data:"
        assert {name: policy.pop(f"{name}-src") for name in ("script", "style", "connect", "font")} == dict.fromkeys(
            ("script", "style", "connect", "font"), "'self'"
        )
        assert set(policy.values()) == {"'none'"}
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_needs_no_key_and_what_it_asks_does(serve) -> None:
    site = await serve(api_key=("secret",))
    for path, _, _ in PAGE_FILES:
        async with site.session.get(site.url + path) as answer:
            assert answer.status == 200
    for path in ("/v1/models", "/events/chart", "/debug/block/1"):
        assert (await site.get(path)).status == 401


def test_no_file_of_the_page_is_forgotten() -> None:
    found = {entry.name for entry in PAGE.iterdir() if entry.is_file()}
    found |= {f"fonts/{entry.name}" for entry in PAGE.joinpath("fonts").iterdir()}
    assert found == {file for _, file, _ in PAGE_FILES}


def test_the_page_names_no_other_host_and_runs_no_inline_code() -> None:
    for file, text in TEXTS.items():
        if file.startswith("fonts/"):
            continue  # a licence is shown as it is
        assert set(re.findall(r"https?://[^'\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}, file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|javascript:", text), file
        if file.endswith(".html"):
            assert not re.search(r"\son\w+=|<style|style=|<script(?![^>]*src=)", text), file


def test_everything_that_is_linked_or_imported_is_served_and_nothing_else() -> None:
    served = {path for path, _, _ in PAGE_FILES}
    needed = {"/", "/chart"}
    for file, text in TEXTS.items():
        if file.endswith(".html"):
            needed |= {normpath(join("/", link)) for link in LINK.findall(text)}
        elif file.endswith(".js"):
            needed |= {normpath(join("/page", name)) for name in re.findall(r'from "(\.[^"]+)"', text)}
        elif file.endswith(".css"):
            needed |= {normpath(join("/page", name)) for name in re.findall(r'url\("([^"]+)"\)', text)}
    assert needed == served


def test_nothing_is_linked_or_asked_for_at_the_root_of_a_host() -> None:
    for file, text in TEXTS.items():
        if not file.startswith("fonts/"):
            assert not re.search(r'(?:href|src)="/|url\("/|(?:send|fetch|import)\(["`]/|from "/', text), file


@pytest.mark.parametrize("room", ROOMS)
def test_every_element_that_a_room_names_is_in_it(room: str) -> None:
    html = TEXTS[room]
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'element\("([^"]+)"\)', SCRIPTS[ROOMS[room]]))
    named |= set(re.findall(r'getElementById\("([^"]+)"\)', SCRIPTS["key_form.js"]))
    assert named <= set(ids)
    for kind in ("for", "aria-controls", "aria-describedby", "aria-labelledby"):
        assert {part for value in re.findall(rf'\b{kind}="([^"]+)"', html) for part in value.split()} <= set(ids)


@pytest.mark.parametrize("room", ROOMS)
def test_every_field_has_a_label(room: str) -> None:
    fields = re.findall(r'<(?:input|textarea|select)[^>]*\bid="([^"]+)"', TEXTS[room])
    assert fields
    assert set(fields) == set(re.findall(r'<label[^>]*\bfor="([^"]+)"', TEXTS[room]))


@pytest.mark.parametrize("file", SCRIPTS)
def test_a_module_of_the_page_is_short_and_says_what_it_is(file: str) -> None:
    assert SCRIPTS[file].startswith("// ")
    assert SCRIPTS[file].count("\n") <= MOST_LINES


def test_each_family_of_letters_comes_with_its_licence() -> None:
    fonts = PAGE.joinpath("fonts")
    assert all(entry.read_bytes()[:4] == b"wOF2" for entry in fonts.iterdir() if entry.name.endswith(".woff2"))
    for family in ("EB-GARAMOND", "IM-FELL-ENGLISH"):
        licence = fonts.joinpath(f"{family}-OFL.txt").read_text()
        assert "SIL OPEN FONT LICENSE Version 1.1" in licence
