"""GBNF: generated grammars against a recogniser that follows their derivations, and notation by hand."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpage.errors import RequestError
from tests.grammar.walking import compiled, sample

ALPHABET = "ab,"
NAMES = ["root", "item", "x-2"]

# A grammar is drawn as a tree, written as GBNF, and recognised by the tree.
Tree = tuple[Any, ...]

leaves = st.one_of(
    st.text(alphabet=ALPHABET, max_size=2).map(lambda text: ("literal", text)),
    st.sampled_from([("class", "a-b", "ab"), ("class", "^a", "b,"), ("class", "b,", "b,")]),
    st.sampled_from([("rule", name) for name in NAMES]),
)
counts = st.sampled_from([("*", 0, 99), ("+", 1, 99), ("?", 0, 1), ("{2}", 2, 2), ("{1,2}", 1, 2), ("{1,}", 1, 99)])
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: ("sequence", *parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: ("options", *options)),
        st.builds(lambda part, count: ("repeat", part, *count), inner, counts),
    ),
    max_leaves=5,
)
grammars = st.fixed_dictionaries(dict.fromkeys(NAMES, trees))


def written(tree: Tree) -> str:
    match tree:
        case ("literal", text):
            return json.dumps(text)
        case ("class", members, _):
            return f"[{members}]"
        case ("rule", name):
            return str(name)
        case ("sequence", *parts):
            return "(" + " ".join(map(written, parts)) + ")"
        case ("options", *options):
            return "(" + "\n  | ".join(map(written, options)) + ")"
        case ("repeat", part, suffix, _, _):
            return f"({written(part)}){suffix}"
    raise AssertionError(tree)


def ends(tree: Tree, text: str, at: int, rules: dict[str, Tree], depth: int) -> set[int]:
    """Where a derivation of the tree that begins at `at` may end."""
    if depth > 60:
        raise RecursionError
    match tree:
        case ("literal", word):
            return {at + len(word)} if text.startswith(word, at) else set()
        case ("class", _, members):
            return {at + 1} if text[at : at + 1] and text[at] in members else set()
        case ("rule", name):
            return ends(rules[name], text, at, rules, depth + 1)
        case ("sequence", *parts):
            found = {at}
            for part in parts:
                found = {end for start in found for end in ends(part, text, start, rules, depth + 1)}
            return found
        case ("options", *options):
            return {end for option in options for end in ends(option, text, at, rules, depth + 1)}
        case ("repeat", part, _, low, high):
            reached, found = {at}, {at} if low == 0 else set()
            seen: list[set[int]] = []
            for count in range(1, min(high, low + len(text) + 1) + 1):
                reached = {end for start in reached for end in ends(part, text, start, rules, depth + 1)}
                if count >= low:
                    found |= reached
                if count > low and reached in seen:
                    break
                seen.append(reached)
            return found
    raise AssertionError(tree)


@settings(max_examples=150, deadline=None)
@given(grammars)
def test_a_grammar_matches_what_its_rules_derive(rules: dict[str, Tree]) -> None:
    text = "".join(f"{name} ::= {written(tree)} # {name}\n\n" for name, tree in rules.items())
    try:
        walk = compiled("grammar", text)
    except RequestError as error:
        assume("itself" not in str(error) and "no text" not in str(error))
        raise
    for length in range(4):
        for chars in itertools.product(ALPHABET, repeat=length):
            tried = "".join(chars)
            assert walk.accepts(tried.encode()) == (length in ends(("rule", "root"), tried, 0, rules, 0)), tried


def test_notation_of_every_kind_is_read() -> None:
    walk = compiled(
        "grammar",
        r"""
        # a comment, then a rule
        root   ::= greeting ", " name ("!" | "?"){1,3} rest?   # another
        greeting ::= "he" "l"{2} "o"
          | "h\x69" | "h\u00e9y"
        name ::= [A-Z] [^A-Z0-9\]\n-]* | ( # inside of a group
            "\"" .
        )
        rest ::= ("\t" | "\\")+
        """.replace("\n        ", "\n"),
    )
    for text in ("hello, World!", "hi, X??", 'héy, "😀!!!', "hi, Éa".replace("É", "E") + "!\t\\"):
        assert walk.accepts(text.encode())
    for text in ("hello", "hi, W", "hi, WA!", "hi, W-!", "hi, W]!", "hi, W\n!"):
        assert not walk.accepts(text.encode())


def test_recursion_goes_as_deep_as_the_text() -> None:
    walk = compiled("grammar", 'root ::= "(" root ")" root | ""')
    rng = random.Random(3)
    for _ in range(20):
        text = sample(walk, rng, most=60)
        if text is not None:
            assert _is_balanced(text.decode())
    for chars in itertools.product("()", repeat=6):
        assert walk.accepts("".join(chars).encode()) == _is_balanced("".join(chars))


def _is_balanced(text: str) -> bool:
    depths = list(itertools.accumulate(1 if char == "(" else -1 for char in text))
    return not depths or (min(depths) >= 0 and depths[-1] == 0)


@pytest.mark.parametrize(
    ("grammar", "name"),
    [
        ('root ::= root "a" | "b"', "'root'"),
        ('root ::= "x" | sum\nsum ::= sum "+" "1" | "1"', "'sum'"),
        ('root ::= a\na ::= b "x" | "y"\nb ::= "z"? a', "'a'"),
        ('root ::= e* root "a" | "b"\ne ::= "c"', "'root'"),
        ('root ::= (root)? "a"', "'root'"),
    ],
)
def test_left_recursion_is_refused_with_the_rules_name(grammar: str, name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} may begin with itself") as raised:
        compiled("grammar", grammar)
    assert raised.value.failure.code == "unsupported"


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("", "no rule named root"),
        ("Root ::= [^\n]+", "no rule named root"),
        ("root ::= other", "'other', which is not defined"),
        ('root ::= "a', "not closed"),
        ("root ::= [a", "not closed"),
        ("root ::= (", "not closed"),
        ('root ::= "a" )', "begins nothing"),
        ('root "a"', "::= must follow"),
        ('::= "a"', "must begin with its name"),
        ('root ::= "a"\nroot ::= "b"', "line 2: .*defined twice"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\x4"', "2 hexadecimal digits"),
        (r'root ::= "\ud800"', "no character"),
        ("root ::= [z-a]", "ends before it begins"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ('root ::= "a"{}', "a count must be"),
        ('root ::= "a" ; "b"', "begins nothing"),
        ("root ::= []", "no text can match"),
        ('root ::= "a" root', "no text can match"),
    ],
)
def test_a_malformed_grammar_says_what_is_wrong(grammar: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as raised:
        compiled("grammar", grammar)
    assert (raised.value.failure.status, raised.value.failure.code) == (400, "invalid_grammar")


def test_tokens_of_the_vocabulary_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="token of the vocabulary") as raised:
        compiled("grammar", "root ::= <[1000]>")
    assert raised.value.failure.code == "unsupported"


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 10_000,
        "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
        'root ::= "a"{1000000}',
        'root ::= "a"?{1000}',
        'root ::= "a"' + "*" * 1000,
        'root ::= "' + "a" * 300_000 + '"',
        "root ::= r0\n" + "".join(f'r{i} ::= "a"\n' for i in range(6_000)),
        "root ::= " + " ".join("[a-z]{200}" for _ in range(1_500)),
    ],
)
def test_a_bomb_is_refused_and_the_limit_named(grammar: str) -> None:
    with pytest.raises(RequestError, match=r"\d") as raised:
        compiled("grammar", grammar)
    assert raised.value.failure.code == "grammar_too_large"


def test_counts_within_counts_share_their_rules() -> None:
    walk = compiled("grammar", 'root ::= (("ab"{30}){30}){2}')
    assert walk.accepts(b"ab" * 1800)
    assert not walk.accepts(b"ab" * 1799)


def test_long_chains_of_rules_need_no_recursion() -> None:
    chain = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}?\n" for i in range(500)) + 'r500 ::= "a"'
    assert compiled("grammar", chain).accepts(b"a")
