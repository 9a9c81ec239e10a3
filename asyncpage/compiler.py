"""Compiles grammars in a process of their own, and keeps what was compiled.

The engine asks it; it sends to nobody but its worker (`python -m asyncpage.grammar`), which is started with the first
grammar, kept warm, and replaced when it dies or takes too long. A caller that is cancelled takes the worker's present
work with it.

INVARIANT: one grammar is compiled at a time, each at most `limit_s`; what waits and what is kept is bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b

import structlog

from asyncpage.errors import Failure, RequestError, request_error
from asyncpage.grammar.source import GrammarSource
from asyncpage.messages import Constraint

log = structlog.get_logger("asyncpage.compiler")

LIMIT_S = 5.0  # what people write compiles in milliseconds
START_S = 60.0  # an interpreter and numpy, on a machine that is busy
MOST_WAITING = 64
MOST_KEPT = 1024
MOST_KEPT_BYTES = 64 << 20
RETRY_S = 1.0
MOMENT_S = 2.0  # for a dump of its memory, where those are kept

_REFUSED = b"\1"
_LENGTH = struct.Struct("<I")
_MAIN = (sys.executable, "-P", "-m", "asyncpage.grammar")


class GrammarCompiler:
    """`backend`: by name. `main`: the worker's command line, to which this process's id and the name are added."""

    def __init__(
        self,
        backend: str = "builtin",
        *,
        limit_s: float = LIMIT_S,
        most_waiting: int = MOST_WAITING,
        main: Sequence[str] = _MAIN,
    ) -> None:
        self._backend = backend
        self._limit_s = limit_s
        self._most_waiting = most_waiting
        self._main = tuple(main)
        self._worker: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._is_closed = False
        self._known: OrderedDict[GrammarSource, Constraint | Failure] = OrderedDict()
        self._known_bytes = 0

    @property
    def pid(self) -> int | None:
        """The worker's process; None before the first grammar."""
        return None if self._worker is None else self._worker.pid

    async def compile(self, source: GrammarSource) -> Constraint:
        """The constraint that a grammar means.

        Errors: `RequestError` 400 for what is wrong with the grammar, `param` inside it, code "grammar_too_large" past
        the time or the memory for it; 429 when too many wait, 503 when the worker dies of it.
        """
        if (known := self._look_up(source)) is not None:
            return known
        if self._waiting >= self._most_waiting:
            raise RequestError(
                f"{self._waiting} grammars wait to be compiled already; ask again later",
                status=429,
                code="grammar_queue_full",
                retry_after_s=RETRY_S,
            )
        self._waiting += 1
        try:
            async with self._turn:
                if (known := self._look_up(source)) is not None:  # whoever came before asked for the same
                    return known
                answer = await self._ask(source)
        finally:
            self._waiting -= 1
        self._keep(source, answer)
        if isinstance(answer, Failure):
            raise request_error(answer)
        return answer

    async def close(self) -> None:
        """End the worker; whoever waits is told that the engine was stopped."""
        self._is_closed = True
        await self._end()

    def _look_up(self, source: GrammarSource) -> Constraint | None:
        known = self._known.get(source)
        if known is None:
            return None
        self._known.move_to_end(source)
        if isinstance(known, Failure):
            raise request_error(known)
        return known

    def _keep(self, source: GrammarSource, answer: Constraint | Failure) -> None:
        if isinstance(answer, Failure) and answer.status >= 500:
            return
        self._known[source] = answer
        self._known_bytes += _size(source, answer)
        while len(self._known) > 1 and (len(self._known) > MOST_KEPT or self._known_bytes > MOST_KEPT_BYTES):
            self._known_bytes -= _size(*self._known.popitem(last=False))

    # --- the worker ---------------------------------------------------------------------------------------------------

    async def _ask(self, source: GrammarSource) -> Constraint | Failure:
        request = json.dumps({"kind": source.kind, "text": source.text}).encode()
        was_warm = self._worker is not None
        try:
            worker = await self._start()
            assert worker.stdin is not None
            worker.stdin.write(_LENGTH.pack(len(request)) + request)
            payload = await asyncio.wait_for(_read(worker), self._limit_s)
        except TimeoutError:
            await self._end()
            # Not kept as an answer: on a machine that is busy it may be no fault of the grammar's.
            text = f"the grammar took longer than {self._limit_s:g} s to compile; make it smaller"
            raise RequestError(text, code="grammar_too_large", param="") from None
        except (asyncio.IncompleteReadError, OSError):
            code = await self._end(dies_by_itself=True)
            # One that had worked before may have died of something else meanwhile.
            return await self._ask(source) if was_warm else _post_mortem(code)
        except BaseException:  # the caller was cancelled: nobody reads the answer
            await self._end()
            raise
        if payload[:1] == _REFUSED:
            return Failure(**json.loads(payload[1:]))
        compiled = payload[1:]
        return Constraint(blake2b(compiled, digest_size=16).digest(), compiled)

    async def _start(self) -> asyncio.subprocess.Process:
        """The worker, ready. Errors: `OSError`, `IncompleteReadError` when it does not get ready."""
        worker = self._worker
        if worker is not None and worker.returncode is None:
            return worker
        if self._is_closed:
            raise RequestError("the engine was stopped", status=503, code="engine_stopped")
        await self._end()
        # One thread, one pool of memory: they take address space, of which the worker has a limited amount.
        environment = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", **os.environ}
        self._worker = worker = await asyncio.create_subprocess_exec(
            *self._main,
            str(os.getpid()),
            self._backend,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            await asyncio.wait_for(_read(worker), START_S)
        except TimeoutError:
            raise ConnectionError from None
        log.debug("compiler.started", pid=worker.pid)
        return worker

    async def _end(self, *, dies_by_itself: bool = False) -> int | None:
        """Kill the worker and wait until it is gone; what it ended with.

        `dies_by_itself`: its pipe has ended. It gets a moment, because a signal to a process that has just died loses
        what it died of.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        if dies_by_itself:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(worker.wait()), MOMENT_S)
        if worker.returncode is None:
            worker.kill()
        if worker.stdin is not None:
            worker.stdin.close()
        return await asyncio.shield(worker.wait())


def _post_mortem(code: int | None) -> Failure:
    """What the death of the worker means to whom it worked for."""
    log.error("compiler.died", code=code)
    if code == -signal.SIGXCPU:
        return Failure(400, "the grammar took too long to compile; make it smaller", "grammar_too_large", "")
    text = "the process that compiles grammars has died; another takes its place"
    return Failure(503, text, "grammar_compiler_died", retry_after_s=RETRY_S)


async def _read(worker: asyncio.subprocess.Process) -> bytes:
    assert worker.stdout is not None
    length = _LENGTH.unpack(await worker.stdout.readexactly(_LENGTH.size))[0]
    return await worker.stdout.readexactly(length)


def _size(source: GrammarSource, answer: Constraint | Failure) -> int:
    return len(source.text) + (len(answer.compiled) if isinstance(answer, Constraint) else len(answer.message))
