"""Stop strings against brute force: any cut of the text, any overlap."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.text.stop_strings import StopMatcher, StopStrings


def brute_force(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the first match ends, and the longest stop string that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def longest_open_end(text: str, stops: list[str]) -> int:
    """How many characters at the end of `text` some stop string begins with, not being it."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


STOPS = st.lists(st.text("abü", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("abü", max_size=4), max_size=12)


@settings(max_examples=300, deadline=None)
@given(stops=STOPS, pieces=PIECES, keeps=st.booleans())
def test_any_cut_gives_what_brute_force_gives(stops: list[str], pieces: list[str], keeps: bool) -> None:
    matcher = StopMatcher(StopStrings(stops))
    out, so_far = "", ""
    expected = brute_force("".join(pieces), stops)
    for piece in pieces:
        so_far += piece
        ready, match = matcher.feed(piece, counts=True, keeps_match=keeps)
        out += ready
        if match is not None:
            assert expected is not None
            end, stop = expected
            assert match == stop
            assert out == so_far[: end if keeps else end - len(stop)]
            return
        # No more is held back than what may still become a match.
        assert len(so_far) - len(out) == longest_open_end(so_far, stops)
        assert matcher.holds is (len(so_far) > len(out))
        assert so_far.startswith(out)
    assert expected is None
    assert out + matcher.flush() == so_far


@settings(max_examples=250, deadline=None)
@given(stops=STOPS, pieces=PIECES, passed=st.integers(0, 12))
def test_matches_that_end_in_the_first_pieces_are_passed_over(stops: list[str], pieces: list[str], passed: int) -> None:
    matcher = StopMatcher(StopStrings(stops))
    out, so_far, found = "", "", None
    for number, piece in enumerate(pieces):
        so_far += piece
        ready, found = matcher.feed(piece, counts=number >= passed, keeps_match=False)
        out += ready
        if found is not None:
            break
        assert len(so_far) - len(out) == longest_open_end(so_far, stops)
    else:
        out += matcher.flush()
    text = "".join(pieces)
    first = len("".join(pieces[:passed]))
    ends = [(end, len(stop)) for end in range(first + 1, len(text) + 1) for stop in stops if text[:end].endswith(stop)]
    if ends:
        end = min(end for end, _ in ends)
        length = max(length for at, length in ends if at == end)
        assert found == text[end - length : end]
        assert out == text[: end - length]
    else:
        assert found is None
        assert out == text


def test_the_order_of_the_list_does_not_matter() -> None:
    for stops in (["wo", " tw"], [" tw", "wo"]):
        assert StopMatcher(StopStrings(stops)).feed("one two", counts=True, keeps_match=False) == ("one", " tw")


def test_a_long_run_of_one_letter_stays_linear() -> None:
    stop = "a" * 1000 + "b"
    matcher = StopMatcher(StopStrings([stop] * 16))
    out = "".join(matcher.feed("a", counts=True, keeps_match=False)[0] for _ in range(20_000))
    assert out == "a" * 19_000
    assert matcher.feed("b", counts=True, keeps_match=False) == ("", stop)
