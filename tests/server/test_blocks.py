"""Blocks: parts of an answer in order, however the text is cut and whenever the changes are taken."""

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.server.generate.blocks import Blocks, Change
from asyncpage.text.reply import CallBegun, CallEnded, ContentPart, PlainReader, ReasoningPart, ReplyPart

# Thoughts, calls and content in any order; what a model writes is never empty where it is anything.
WORDS = st.text("ab é\n", min_size=1, max_size=5)
THOUGHTS = WORDS.map(lambda text: f"\1{text}\2")
CALLS = st.tuples(WORDS, WORDS).map(lambda pair: f"\3{pair[0]}\4{pair[1]}\5")
MARKED = r"\x01([^\x02]*)\x02|\x03([^\x04]*)\x04([^\x05]*)\x05|([^\x01\x03]+)"
ANSWERS = st.lists(WORDS | THOUGHTS | CALLS, max_size=6).map("".join)


def parsed(text: str) -> list[tuple[str, str, str]]:
    """The blocks that a marked text is: by a pattern, in one look."""
    found = []
    for thought, name, arguments, content in re.findall(MARKED, text):
        if name:
            found.append(("call", name, arguments))
        else:
            kind, said = ("reasoning", thought) if thought else ("text", content)
            if found and found[-1][0] == kind:
                said = found.pop()[2] + said
            found.append((kind, "", said))
    return found


def shown(blocks: Blocks) -> list[tuple[str, str, str]]:
    return [(block.kind, block.name, block.text) for block in blocks.blocks]


def retold(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    """The blocks again, from their changes alone; each is opened, grows and is closed before the next."""
    found: list[tuple[str, str, str]] = []
    is_open = False
    for change in changes:
        if change.kind == "opened":
            assert not is_open
            assert change.block.number == len(found)
            found.append((change.block.kind, change.block.name, ""))
        else:
            assert is_open
            assert change.block.number == len(found) - 1
            kind, name, text = found.pop()
            found.append((kind, name, text + change.text))
        is_open = change.kind != "closed"
    assert not is_open
    return found


@given(ANSWERS, st.data())
def test_blocks_are_the_same_however_the_text_is_cut_and_whenever_they_are_told(mark_reader, text, data) -> None:
    blocks, changes = Blocks(mark_reader(), keeps_entries=False), []
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, 4))
        blocks.read(text[at : at + size], size, ())
        at += size
        if data.draw(st.booleans()):
            changes += blocks.take()
    blocks.end(is_cut=False)
    changes += blocks.take()
    assert not blocks.take()
    assert shown(blocks) == parsed(text) == retold(changes)
    assert all(block.is_closed and not block.is_cut for block in blocks.blocks)


def test_parts_that_come_together_are_one_change(mark_reader) -> None:
    blocks = Blocks(mark_reader(), keeps_entries=False)
    for letter in "\1ab\2cd\3f\4{}\5":
        blocks.read(letter, 1, ())
    assert [(change.kind, change.text) for change in blocks.take()] == [
        ("opened", ""),
        ("grew", "ab"),
        ("closed", ""),
        ("opened", ""),
        ("grew", "cd"),
        ("closed", ""),
        ("opened", ""),
        ("grew", "{}"),
        ("closed", ""),
    ]


def test_the_block_that_an_answer_ends_in_is_cut_when_the_answer_is(mark_reader) -> None:
    for text, cut in (("ab", [True]), ("\3f\4{", [True]), ("a\3f\4{}\5", [False, False]), ("\1ab", [True])):
        blocks = Blocks(mark_reader(), keeps_entries=False)
        blocks.read(text, 1, ())
        blocks.end(is_cut=True)
        blocks.take()
        assert [block.is_cut for block in blocks.blocks] == cut
        assert all(block.is_closed for block in blocks.blocks)


def test_tokens_of_reasoning_are_counted(mark_reader) -> None:
    blocks = Blocks(mark_reader(), keeps_entries=False)
    for text, tokens in (("a", 1), ("\1th", 2), ("", 1), ("ink", 3), ("\2b", 5), ("", 1)):
        blocks.read(text, tokens, ())
    assert blocks.reasoning_tokens == 6


class Hesitant:
    """Holds back every text until the next one comes."""

    def __init__(self) -> None:
        self._held: list[ReplyPart] = []

    def feed(self, text: str) -> Sequence[ReplyPart]:
        part: ReplyPart = (
            ReasoningPart(text) if text.startswith("?") else CallBegun(0, text) if text == "f" else ContentPart(text)
        )
        told, self._held = self._held, [part, *([CallEnded(0)] if text == "f" else [])]
        return told

    def end(self) -> Sequence[ReplyPart]:
        return self._held


def entry(token: int) -> tuple[Any, ...]:
    return (token, -1.0, 1)


def test_log_probabilities_go_with_the_text_that_their_tokens_are() -> None:
    for reader, takes in ((PlainReader(), False), (PlainReader(), True), (Hesitant(), False), (Hesitant(), True)):
        blocks, told = Blocks(reader, keeps_entries=True), []
        for token, text in enumerate(["a", "", "b", "c"]):
            blocks.read(text, 1, [entry(token)])
            if takes:
                told += blocks.take()
        blocks.read("", 1, [entry(4)])  # the token that ends the answer
        blocks.end(is_cut=False)
        told += blocks.take()
        (block,) = blocks.blocks
        assert block.entries == [each for change in told for each in change.entries] == [entry(n) for n in range(5)]


def test_tokens_that_are_no_text_have_no_log_probabilities_to_show() -> None:
    blocks = Blocks(Hesitant(), keeps_entries=True)
    for token, text in enumerate(["?a", "b", "f", "c"]):
        blocks.read(text, 1, [entry(token)])
    blocks.end(is_cut=False)
    blocks.take()
    kinds = [(block.kind, [token for token, *_ in block.entries]) for block in blocks.blocks]
    # A reader that holds back tells of a part when the next token has come.
    assert kinds == [("reasoning", []), ("text", [2]), ("call", []), ("text", [])]
