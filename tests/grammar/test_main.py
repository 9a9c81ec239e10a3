"""What the compile worker answers to one request, whatever the compiler does with it."""

from __future__ import annotations

import json
from unittest.mock import patch

import pytest

from asyncpage.errors import RequestError
from asyncpage.grammar import compile as compiler
from asyncpage.grammar import network
from asyncpage.grammar.__main__ import OK, REFUSED, answer
from asyncpage.grammar.builtin import BuiltinBackend
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.source import GrammarSource

REQUEST = json.dumps({"kind": "choice", "text": '["a", "b"]'}).encode()


def refusal() -> dict[str, object]:
    told = answer(BuiltinBackend(), REQUEST)
    assert told[:1] == REFUSED
    found: dict[str, object] = json.loads(told[1:])
    return found


def test_a_network_is_told_as_its_bytes() -> None:
    assert answer(BuiltinBackend(), REQUEST) == OK + compile_source(GrammarSource("choice", '["a", "b"]')).to_bytes()


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (RequestError("no", param="a.b", code="unsupported"), 400, "unsupported", "a.b"),
        (MemoryError(), 400, "grammar_too_large", ""),
        (RecursionError(), 400, "grammar_too_large", ""),
        (ZeroDivisionError("secret words"), 500, "internal_error", None),
    ],
)
def test_whatever_the_compiler_raises_is_told(
    error: Exception, status: int, code: str, param: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.object(compiler, "compile_source", side_effect=error):
        told = refusal()
    assert (told["status"], told["code"], told["param"]) == (status, code, param)
    assert "secret" not in capsys.readouterr().err + str(told)


def test_a_network_of_too_many_bytes_is_refused() -> None:
    with patch.object(network, "MAX_BYTES", 10):
        assert refusal()["code"] == "grammar_too_large"


def test_structures_are_the_built_in_compilers_business_whatever_the_backend() -> None:
    class Other(BuiltinBackend):
        def compile(self, source: GrammarSource) -> bytes:
            return b"other"

    structure = json.dumps({"kind": "structure", "text": '{"literal": "a"}'}).encode()
    assert answer(Other(), REQUEST) == OK + b"other"
    assert answer(Other(), structure)[:5] == OK + network.MAGIC
