"""Regular expressions against Python's own, as generated patterns over generated texts, and by hand."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from asyncpage.grammar.charset import ANY, CharSet, charset, one_of
from asyncpage.grammar.regex import full_match, search
from asyncpage.grammar.regex_case import case_closed
from asyncpage.grammar.regex_classes import CLASSES
from tests.grammar.walking import Walk, compiled, sample

ALPHABET = "abAB01_- .]"
UNICODE = "aZ5_ é\u00a0\u0660ſßΣς\u2028\ufeff\U0001f600\U00010400"

literals = st.sampled_from([*"abAB01_-", r"\.", r"\]", " ", r"\x61", r"\u0062"])
escapes = st.sampled_from([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "."])
class_members = st.one_of(literals, st.sampled_from(["a-z", "A-B", "0-9", r"\d", r"\w", r"\s", r"\W"]))
classes = st.builds(
    lambda negation, members: f"[{negation}{''.join(m for m in members if m != '-')}x]",
    st.sampled_from(["", "^"]),
    st.lists(class_members, min_size=1, max_size=3),
)
atoms = st.one_of(literals, escapes, classes)
quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{2,3}", "*?", "+?", "{1,2}?"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.builds(lambda opening, body: f"{opening}{body})", st.sampled_from(["(", "(?:", "(?P<n>"]), inner)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.builds("{}|{}".format, inner, inner).map(lambda body: f"(?:{body})"),
        groups.map(lambda group: group.replace("(?P<n>", "(?:") if group.count("?P<n>") > 1 else group),
        st.builds("(?:{}){}".format, inner, quantifiers),
    )


patterns = st.recursive(atoms, _larger, max_leaves=6).filter(lambda pattern: pattern.count("?P<n>") < 2)
texts = st.text(alphabet=ALPHABET, max_size=8)


def compiled_if_any(pattern: str) -> Walk | None:
    """None when it is refused, as no text can match it."""
    try:
        return compiled("regex", pattern)
    except RequestError as error:
        if "no text can match this" not in str(error):
            raise
        return None


@settings(max_examples=200, deadline=None)
@given(patterns, st.lists(texts, min_size=1, max_size=8))
@example(r"[^\w\Wx]", ["x", "", "y"])
def test_a_pattern_matches_the_texts_that_python_says(pattern: str, tried: list[str]) -> None:
    walk, oracle = compiled_if_any(pattern), re.compile(pattern, re.ASCII)
    for text in tried:
        assert (walk is not None and walk.accepts(text.encode())) == (oracle.fullmatch(text) is not None)


@settings(max_examples=150, deadline=None)
@given(patterns, st.sampled_from(["", "^"]), st.sampled_from(["", "$"]), st.lists(texts, min_size=1, max_size=8))
def test_a_search_finds_what_python_finds(pattern: str, begin: str, end: str, tried: list[str]) -> None:
    automaton, oracle = search(begin + pattern + end), re.compile(begin + pattern + end, re.ASCII)
    for text in tried:
        assert automaton.matches(text) == (oracle.search(text) is not None)


@settings(max_examples=100, deadline=None)
@given(patterns, st.lists(st.text(alphabet=UNICODE, max_size=5), max_size=6), st.integers(0, 2**32))
def test_what_matches_beyond_ascii_matches_for_python_with_and_without_ascii(
    pattern: str, tried: list[str], seed: int
) -> None:
    walk = compiled_if_any(pattern)
    if walk is None:
        assert not any(re.fullmatch(pattern, text, re.ASCII) for text in tried)
        return
    sampled = sample(walk, random.Random(seed), most=60)
    tried += [sampled.decode()] if sampled is not None else []
    for text in tried:
        if walk.accepts(text.encode()):
            assert re.fullmatch(pattern, text)
            assert re.fullmatch(pattern, text, re.ASCII)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^a|b$", ["a", "ax", "b", "xb"], ["xa", "bx", ""]),
        (r"(^|-)a", ["a", "-a", "x-a"], ["xa"]),
        (r"a($|-)", ["a", "a-", "xa-b"], ["ab"]),
        (r"^$", [""], ["a"]),
        (r"x*^a", ["a", "ab"], ["xa"]),
        (r"(^a|b){2}", ["ab", "bb", "xbb"], ["aa", "xab"]),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1", "-0.5", "00", "+7."], ["", "-", ".", "+.", "a"]),
        (r"^(?=.*[A-Z])(?=.*\d).{3,5}$", ["aA1", "1Abc"], ["abc", "A1", "aaaaA1"]),
        (r"^\u{1F600}\uD83D\uDE00$", ["\U0001f600" * 2], ["\U0001f600"]),
        (r"^[\b\cA\0]+$", ["\b\x01\0"], ["b"]),
        (r"^a{$", ["a{"], ["a"]),
        (r"^a{x}$", ["a{x}"], ["a"]),
        (r"^(?:(?i:a)b)$", ["ab", "Ab"], ["aB"]),
    ],
)
def test_anchors_escapes_and_lookaheads_mean_what_ecma_says(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    automaton = search(pattern)
    assert [text for text in matching + others if automaton.matches(text)] == matching


def test_case_is_ignored_where_a_flag_says_so() -> None:
    walk = compiled("regex", "(?i)straße [a-c]+")
    assert walk.accepts("STRAßE AbC".encode())
    assert not walk.accepts(b"STRASSE abc")
    assert walk.accepts("straße cab".encode())


EVERY = "".join(map(chr, (point for low, high in ANY.ranges for point in range(low, high + 1))))


def _pythons(pattern: str, flags: int) -> CharSet:
    """All characters that a pattern for one character matches, as Python has it."""
    found = re.compile(f"(?:{pattern})+", flags | re.DOTALL).finditer(EVERY)
    return charset((ord(EVERY[one.start()]), ord(EVERY[one.end() - 1])) for one in found)


@pytest.mark.parametrize("char", ["a", "k", "I", "\u0130", "\u0131", "σ", "ß", "\u212a"])
def test_a_letters_cases_are_pythons_at_most_and_where_they_are_left_out_at_least(char: str) -> None:
    pythons = _pythons(re.escape(char), re.IGNORECASE)
    assert not case_closed(one_of(char), is_wide=False) - pythons
    assert not pythons - case_closed(one_of(char), is_wide=True)


@pytest.mark.parametrize("flags", [0, re.ASCII])
@pytest.mark.parametrize("letter", sorted(CLASSES))
def test_a_named_class_holds_only_what_every_dialect_holds(letter: str, flags: int) -> None:
    narrow, wide = CLASSES[letter]
    pythons = _pythons("\\" + letter, flags)
    assert not narrow - pythons
    assert not pythons - wide


def test_a_lookahead_that_must_fail_fails_for_every_dialects_classes() -> None:
    automaton = search(r"^(?!.*\d)(?!.*[^\s\S]).*$")
    assert automaton.matches("abc")
    assert not automaton.matches("5")
    assert not automaton.matches("\u0665")  # a digit for Python


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a(?=b)", "lookahead"),
        ("(?<=a)b", "lookbehind"),
        ("(?<!a)b", "lookbehind"),
        ("a|(?!b)c", "lookahead"),
        (r"(a)\1", "backreference"),
        (r"(?P<n>a)(?P=n)", "backreference"),
        (r"\ba", "word boundary"),
        (r"a\B", "word boundary"),
        (r"\p{L}", "Unicode property"),
        ("[[:alpha:]]", "POSIX class"),
        ("[a-z&&b]", "operation on classes"),
        ("(?>a)", "atomic group"),
        ("a++", "possessive"),
        ("(?m)a", "flags"),
        ("a(?i)b", "flags"),
        ("(?(1)a|b)", "conditional"),
        (r"\01", "octal"),
    ],
)
def test_what_is_no_finite_automaton_or_differs_between_dialects_is_refused_by_name(pattern: str, name: str) -> None:
    with pytest.raises(RequestError, match=name) as raised:
        full_match(pattern, ("pattern",))
    assert (raised.value.failure.status, raised.value.failure.code) == (400, "unsupported")
    assert raised.value.failure.param == "pattern"


def test_a_search_with_a_lookahead_must_begin_at_the_start() -> None:
    with pytest.raises(RequestError, match=r"only after \^"):
        search("(?=a)b")


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[]", "[^]", "[z-a]", "[a", "*a", "a**", "a{2}{3}", "a{5,2}", "a{,3}", "^*", "\\",
        r"\y", r"\x1", r"\u12", r"\u{110000}", r"\ud800", r"[\d-z]", "(?<1>a)", "(?P<>a)", r"\U00110000",
    ],
)  # fmt: skip
def test_a_malformed_pattern_is_told_from_an_unsupported_one(pattern: str) -> None:
    with pytest.raises(RequestError) as raised:
        full_match(pattern)
    assert raised.value.failure.code == "invalid_grammar"


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1000}){1000}",
        "((a{100}){100}){100}",
        "(" * 10_000,
        "(" * 10_000 + ")" * 10_000,
        "a" * 100_000,
        "a{9999999999}",
        "(a*b*c*d*){3000}",
        "((a?){50}){300}",
    ],
)
def test_a_bomb_is_refused_and_the_limit_named(pattern: str) -> None:
    with pytest.raises(RequestError, match=r"\d|often|nine") as raised:
        full_match(pattern)
    assert raised.value.failure.code == "grammar_too_large"


def test_an_exponential_automaton_stays_as_it_is_written() -> None:
    walk = compiled("regex", "(a|b)*a(a|b){20}")
    rng = random.Random(5)
    for _ in range(200):
        text = "".join(rng.choice("ab") for _ in range(30))
        assert walk.accepts(text.encode()) == (text[-21] == "a")
