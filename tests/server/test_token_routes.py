"""Token ids of texts and conversations, and texts of token ids, without running anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asyncpage.messages import ChatPrompt, TextPrompt
from tests.server.conftest import Letters

USER = {"role": "user", "content": "hé"}


async def tokenized(site, **fields: Any) -> dict[str, Any]:
    status, body = await site.post("/tokenize", fields)
    assert status == 200, body
    return body


async def test_a_text_is_told_as_ids_with_their_number_and_the_context(site) -> None:
    body = await tokenized(site, prompt="hé", model="org/alias")
    assert body == {"count": 3, "max_model_len": 512, "tokens": [104, 195, 169]}
    assert not site.engine.submitted


async def test_token_texts_are_told_when_asked(site) -> None:
    body = await tokenized(site, prompt="hi", return_token_strs=True)
    assert body["token_strs"] == ["h", "i"]


@pytest.mark.parametrize(("wanted", "add_special"), [({}, True), ({"add_special_tokens": False}, False)])
async def test_the_special_tokens_of_a_text_can_be_left_out(site, wanted: dict[str, Any], add_special: bool) -> None:
    await tokenized(site, prompt="hi", **wanted)
    assert site.engine.tokenized == [TextPrompt("hi", add_special=add_special)]


async def test_a_conversation_is_read_as_the_chat_route_reads_it(site) -> None:
    asked = {
        "messages": [{"role": "developer", "content": [{"type": "text", "text": "be brief"}]}, USER],
        "add_generation_prompt": False,
        "chat_template_kwargs": {"style": "plain"},
    }
    body = await tokenized(site, **asked)
    (prompt,) = site.engine.tokenized
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == ({"role": "system", "content": "be brief"}, USER)
    assert (prompt.add_generation_prompt, prompt.kwargs, prompt.add_special) == (False, {"style": "plain"}, False)
    status, answer = await site.post("/v1/chat/completions", {**asked, "max_tokens": 1})
    assert status == 200
    assert site.engine.submitted[0][0] == prompt
    assert answer["usage"]["prompt_tokens"] == body["count"]


async def test_an_empty_text_has_no_tokens(site) -> None:
    assert (await tokenized(site, prompt=""))["tokens"] == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": None, "messages": None}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role"),
        ("/tokenize", {"messages": [USER], "add_generation_prompt": "no"}, "add_generation_prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens.0"),
        ("/detokenize", {"tokens": [1] * 200_000}, "tokens"),
        ("/detokenize", {"tokens": [[1]]}, "tokens.0"),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(site, path: str, fields: dict[str, Any], param: str) -> None:
    status, body = await site.post(path, fields)
    assert (status, body["error"]["param"]) == (400, param)


async def test_an_unknown_model_is_not_found_and_unknown_fields_are_counted(site) -> None:
    for path, own in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})):
        status, body = await site.post(path, {**own, "model": "other"})
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await site.post(path, {**own, "frobnicate": 1}))[0] == 200
    assert "asyncpage_ignored_fields_total 2.0" in (await site.get("/metrics")).text


@pytest.mark.parametrize("text", ["", "hello", "é€😀", "half \x00 and \x7f"])
async def test_ids_become_the_text_that_they_came_from(site, text: str) -> None:
    ids = (await tokenized(site, prompt=text))["tokens"]
    assert await site.post("/detokenize", {"tokens": ids}) == (200, {"prompt": text})


async def test_ids_that_are_no_whole_character_show_its_place(site) -> None:
    assert await site.post("/detokenize", {"tokens": [104, 195]}) == (200, {"prompt": "h\ufffd"})


async def test_a_long_answer_says_the_same_as_a_short_one(site) -> None:
    text = "abcdefghij" * 1200
    body = await tokenized(site, prompt=text, return_token_strs=True)
    assert bytes(body["tokens"]).decode() == "".join(body["token_strs"]) == text
    assert body["count"] == 12_000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "ab" * 30_000, "return_token_strs": True}),
        ("/detokenize", {"tokens": [97, 98] * 30_000}),
    ],
)
async def test_others_have_their_turn_while_many_ids_are_gone_through(site, path: str, fields: dict[str, Any]) -> None:
    class Counted(Letters):
        seen = 0

        def token_bytes(self, id: int) -> bytes:
            self.seen += 1
            return super().token_bytes(id)

    counted = site.engine.tokens = Counted()
    most, last = 0, 0

    def look() -> None:
        nonlocal most, last, handle
        most, last = max(most, counted.seen - last), counted.seen
        handle = asyncio.get_running_loop().call_soon(look)

    handle = asyncio.get_running_loop().call_soon(look)
    status, _ = await site.post(path, fields)
    handle.cancel()
    assert (status, counted.seen) == (200, 60_000)
    assert most <= 2 * 4096


async def test_what_the_tokenizer_is_can_be_asked(site) -> None:
    answer = await site.get("/tokenizer_info")
    assert answer.json == {"bos_token": None, "eos_token": "<end>", "chat_template": "{{ 1 }}"}


async def test_nothing_is_told_before_the_model_is_there(site) -> None:
    site.engine.state = "loading"
    assert (await site.get("/tokenizer_info")).status == 503
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [97]})):
        async with site.session.post(site.url + path, data=json.dumps(body)) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
