"""Templates that walk out, run away or grow without end: each ends at once, in an error or in little text."""

from __future__ import annotations

import tracemalloc

import pytest

from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.vocabulary import Vocabulary

BIG = "{% set s = 'a' * 1000000 %}"
MANY = "{% set l = range(100000) | list %}{% for i in range(100000) %}"
GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def grow(start: str, step: str, rest: str = "") -> str:
    return GROW.replace("START", start).replace("STEP", step) + rest


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ dict.fromkeys([1]).__class__.mro() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% include '/etc/hostname' %}",
    "{% import '/etc/hostname' as x %}",
    "{{ self.__init__.__globals__ }}",
    "{{ raise_exception.__globals__.x }}",
    "{{ strftime_now.__globals__['json'] }}",
    "{{ '%s'.translate({37: 'x' * 1000}) }}",
]
BOMBS = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ range(10**9) | list | length }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(3000) recursive %}{{ loop(range(3000)) }}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ '\t'.expandtabs(10**9) }}",
    "{{ (1).to_bytes(10**9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "{{ 1 | round(-100000000) }}",
    "{{ 2.5 | round(100000000, 'ceil') }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ ('a\n' * 100000) | indent(9999) }}",
    "{{ [1, 2] | tojson(indent=10**9) }}",
    "{{ (9 ** 4000) ** 4000 }}",
    grow("3", "ns.x * ns.x"),
    grow("'a'", "ns.x ~ ns.x"),
    grow("'a'", "ns.x + ns.x"),
    grow("[1]", "ns.x + ns.x"),
    grow("1", "[ns.x, ns.x]", "{{ ns.x }}"),
    grow("1", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    grow("1", "dict(a=ns.x, b=ns.x)", "{{ ns.x }}"),
    grow("'%s%s'", "ns.x % (ns.x, ns.x)"),
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}" + "y" * 100_000 + "{% endfor %}{% endset %}",
    "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
    BIG + "{{ s | replace('a', s) | length }}",
    BIG + "{{ s.replace('a', s) | length }}",
    BIG + "{{ s.join(s) | length }}",
    BIG + "{{ s | join(s) | length }}",
    BIG + "{{ ('{0}' * 100000).format(s) | length }}",
    BIG + "{{ ('%(x)s' * 100000) % {'x': s} }}",
    BIG + "{% for i in range(100000) %}{% if 'ab' in s %}{% endif %}{% endfor %}",
    BIG + "{% for i in range(100000) %}{% set x = s[1:] %}{% endfor %}",
    BIG + "{% for i in range(100000) %}{% if s == s[::-1] %}{% endif %}{% endfor %}",
    BIG + "{% for i in range(100000) %}{% set x = s | upper %}{% endfor %}",
    MANY + "{% set x = l | sort %}{% endfor %}",
    MANY + "{% set x = -1 in l %}{% endfor %}",
    MANY + "{% set x = l == l %}{% endfor %}",
    MANY + "{% set x = l | map('string') | list %}{% endfor %}",
    MANY + "{% set x = l | select('divisibleby', 100001) | list %}{% endfor %}",
    MANY + "{% set x = l | reverse | list %}{% endfor %}",
]


def render(template: str) -> str:
    vocabulary = Vocabulary("x", [""], lambda: iter(()), (), Splitting(GPT2))
    prompt = ChatPrompt(({"role": "user", "content": "x"},))
    return ChatTemplate({"default": template}, vocabulary).render(prompt, wall_s=0.0).text


@pytest.mark.parametrize("template", ESCAPES)
def test_a_way_out_is_refused(template: str) -> None:
    with pytest.raises(RequestError, match="the chat template"):
        render(template)


@pytest.mark.parametrize("template", BOMBS, ids=range(len(BOMBS)))
def test_a_template_that_runs_away_ends_in_an_error(template: str) -> None:
    with pytest.raises(RequestError, match=r"the chat template (costs too much|calls itself|fails on it)"):
        render(template)


def test_running_away_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        for template in ("{{ 'a' * 10**9 }}", grow("'a'", "ns.x ~ ns.x")):
            with pytest.raises(RequestError):
                render(template)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "template", ["{{ dict.__base__ }}", "{{ raise_exception.__globals__ }}", "{{ self.__class__ }}"]
)
def test_what_is_private_is_not_there(template: str) -> None:
    assert render(template) == ""


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ [3, 1] | sort | join('-') }}", "1-3"),
        ("{{ '%5.1f|%-3s|%%' % (2.25, 'x') }}", "  2.2|x  |%"),
        ("{{ '**%s** 12345' % 'x' }}", "**x** 12345"),
        ("{{ '{:>4}|{!r}'.format(7, 'x') }}", "   7|'x'"),
        ("{{ {'a': (1, 2)} | tojson }}", '{"a": [1, 2]}'),
        ("{{ 2 ** 10 + 7 % 4 * 2 }}", "1030"),
        ("{{ 'x'.ljust(3) }}|{{ 'abcabc'.replace('b', 'xx') }}", "x  |axxcaxxc"),
        ("{{ namespace(a=1).a }}{{ dict(a=1).a }}{{ cycler('p', 'q').next() }}", "11p"),
        (
            "{% for a in [1, 2] %}{{ loop.length }}{{ loop.last }}{{ loop.cycle('u', 'v') }}{% endfor %}",
            "2Falseu2Truev",
        ),
        ("{% for a in [[1, [2]], [3]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}", "123"),
        ("{{ 1700000000 | default(3) }}{{ messages | length }}", "17000000001"),
        ("{% filter upper %}ab{% endfilter %}{% call(x) m('c') %}{{ x }}{% endcall %}", None),
    ],
)
def test_ordinary_templates_work(template: str, expected: str | None) -> None:
    if expected is None:
        template = "{% macro m(y) %}[{{ caller(y) }}]{% endmacro %}" + template
        expected = "AB[c]"
    assert render(template) == expected
