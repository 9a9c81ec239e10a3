"""The compile worker: `python -m asyncpage.grammar PARENT_PID BACKEND`, started by `asyncpage/compiler.py`.

Reads requests on standard input and answers each on standard output, both a length of 4 bytes (little-endian) and as
many bytes. A request is a `GrammarSource` as JSON; an answer is `OK` and the compiled bytes, or `REFUSED` and what
`RequestError` says as JSON. The first answer is empty and says that the worker is ready. A grammar is a client's word:
memory and processor time are limited by the system, wall time by the parent.

INVARIANT: nothing is imported before the tether that takes longer than the interpreter's own start; no request, however
made, ends the worker except by the system's limits.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import traceback
from typing import TYPE_CHECKING, BinaryIO

from asyncpage.pipes.tether import tie_to_parent

if TYPE_CHECKING:
    from asyncpage.grammar.backend import GrammarBackend

OK, REFUSED = b"\0", b"\1"

MEMORY_BYTES = 2 << 30  # of address space, of which numpy and its libraries take some hundred megabytes
CPU_S = 30  # a request; the parent gives up long before

_LENGTH = struct.Struct("<I")
_FIRST = b'{"kind": "choice", "text": "[\\"a\\"]"}'


def main(parent_pid: int, name: str) -> None:
    """Compile with the backend called `name` until standard input ends."""
    tie_to_parent(parent_pid, 0)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints may come between answers
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    from asyncpage.grammar.backend_registry import load_backend

    backend = load_backend(name)
    answer(backend, _FIRST)  # imports what compiling takes
    _write(answers, b"")
    while (header := requests.read(_LENGTH.size)) != b"":
        used_s = resource.getrusage(resource.RUSAGE_SELF)
        limit_s = int(used_s.ru_utime + used_s.ru_stime) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
        _write(answers, answer(backend, requests.read(_LENGTH.unpack(header)[0])))


def answer(backend: GrammarBackend, request: bytes) -> bytes:
    """What the parent is told of one request."""
    from asyncpage.errors import Failure, RequestError
    from asyncpage.grammar.builtin import BuiltinBackend
    from asyncpage.grammar.network import MAX_BYTES
    from asyncpage.grammar.source import GrammarSource

    try:
        source = GrammarSource(**json.loads(request))
        # What the server composes itself, of calls and of what is thought before, is no format of a library's.
        compiled = (BuiltinBackend() if source.kind == "structure" else backend).compile(source)
        if len(compiled) <= MAX_BYTES:
            return OK + compiled
        failure = Failure(400, f"the compiled grammar has more than {MAX_BYTES} bytes", "grammar_too_large", "")
    except RequestError as error:
        failure = error.failure
    except (MemoryError, RecursionError):
        failure = Failure(400, "the grammar is too large, or nested too deep, to be compiled", "grammar_too_large", "")
    except Exception as error:
        # Where it happened, without the words of the error, which may quote the grammar.
        sys.stderr.write("".join(traceback.format_tb(error.__traceback__)) + type(error).__name__ + "\n")
        failure = Failure(500, "the server failed to compile this grammar; its log says where", "internal_error")
    told = {"status": failure.status, "message": failure.message, "code": failure.code, "param": failure.param}
    return REFUSED + json.dumps(told).encode()


def _write(answers: BinaryIO, data: bytes) -> None:
    answers.write(_LENGTH.pack(len(data)) + data)
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
