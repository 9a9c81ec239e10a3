"""What the steps of a script hold back, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.reasoning.think import ThinkReader
from asyncpage.text.reply import CallArguments, CallBegun, CallEnded, PlainReader, ReplyPart, ReplyReader
from asyncpage.text.scripted_reader import Script, ScriptedReader


class Marked(ScriptedReader):
    """A call at every `<!>`, which `<.>` may close."""

    def script(self) -> Script[None]:
        while (yield from self.content("<!>")):
            self.begin_call("f")
            self.end_call()
            yield from self.skip_markup("<.>")


def thinking() -> ThinkReader:
    return ThinkReader(PlainReader(), "<!!>", "<!>", is_open=True)


READERS = (Marked, thinking)


def text_of(parts: list[ReplyPart]) -> str:
    """What is said or thought, with a bar where there is something else."""
    return "".join("|" if isinstance(part, CallBegun | CallArguments | CallEnded) else part.text for part in parts)


def read(reader: ReplyReader, pieces: list[str]) -> str:
    return text_of([part for piece in pieces for part in reader.feed(piece)] + [*reader.end()])


@pytest.mark.parametrize("make", READERS)
def test_white_space_is_held_up_to_a_bound(make: type[Marked]) -> None:
    reader = make()
    told = len(text_of([*reader.feed("a")])) - 1
    for fed in range(7, 7 * 1000, 7):
        told += len(text_of([*reader.feed(" \n \t \r\n"[:7])]))
        assert fed - told <= 1024 + len("<!>")


@pytest.mark.parametrize(("spaces", "left"), [(1023, 0), (1024, 0), (1025, 1), (5000, 3976)])
@pytest.mark.parametrize("width", [1, 7, 1000, 100_000])
def test_white_space_before_a_marker_belongs_to_it_up_to_the_same_bound(spaces: int, left: int, width: int) -> None:
    text = "a" + "\n" * spaces + "<!>"
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    assert read(Marked(), pieces) == "a" + "\n" * left + "||"
    assert read(thinking(), pieces) == "a" + "\n" * left


@pytest.mark.parametrize("width", [1, 7, 100_000])
def test_a_closing_marker_far_behind_a_call_does_not_close_it(width: int) -> None:
    for spaces, rest in ((1024, ""), (1025, " " * 1025 + "<.>")):
        text = "<!>" + " " * spaces + "<.>"
        assert read(Marked(), [text[at : at + width] for at in range(0, len(text), width)]) == "||" + rest


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(
        st.sampled_from(["<!>", "<", "<.>", "a", " ", "\n" * 1020, " " * 1030, "\t" * 3000]), min_size=1, max_size=8
    ),
    width=st.integers(1, 900),
)
def test_long_white_space_is_read_the_same_however_it_is_cut(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    for make in READERS:
        cut = [text[at : at + width] for at in range(0, len(text), width)]
        assert read(make(), [text]) == read(make(), pieces) == read(make(), cut)
