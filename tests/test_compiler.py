"""Grammars are compiled in a process of their own, whatever happens to it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncpage import compiler as module
from asyncpage.compiler import GrammarCompiler
from asyncpage.errors import Failure, RequestError
from asyncpage.grammar.compile import compile_source
from asyncpage.grammar.source import GrammarSource

# Speaks as the worker does, and does what the grammar's text says.
FAKE = r"""
import json, os, resource, select, struct, sys
def write(data):
    sys.stdout.buffer.write(struct.pack("<I", len(data)) + data)
    sys.stdout.buffer.flush()
write(b"")
asked = 0
while header := sys.stdin.buffer.read(4):
    text = json.loads(sys.stdin.buffer.read(struct.unpack("<I", header)[0]))["text"]
    asked += 1
    if text == "hang" or (text[0] == "/" and not os.path.exists(text)):
        if text != "hang":
            open(text, "x").close()
        select.select([], [], [])
    if text == "burn":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (1, 10))
        while True:
            pass
    if text == "die":
        os._exit(3)
    if text == "refuse":
        write(b"\1" + json.dumps({"status": 400, "message": "no", "code": "c", "param": "p"}).encode())
    else:
        write(b"\0%d %s" % (asked, text.encode()))
"""
FAKE_MAIN = (sys.executable, "-c", FAKE)


def regex(text: str) -> GrammarSource:
    return GrammarSource("regex", text)


@asynccontextmanager
async def lived(compiler: GrammarCompiler) -> AsyncIterator[GrammarCompiler]:
    try:
        with capture_logs():
            yield compiler
    finally:
        await compiler.close()
        assert compiler.pid is None


async def failure_of(compiler: GrammarCompiler, text: str) -> Failure:
    with pytest.raises(RequestError) as caught:
        await compiler.compile(regex(text))
    return caught.value.failure


async def test_the_worker_gives_what_the_compiler_gives_and_its_refusals() -> None:
    async with lived(GrammarCompiler()) as compiler:
        assert compiler.pid is None
        source = regex("a{2,3}|né")
        made = await compiler.compile(source)
        assert made.compiled == compile_source(source).to_bytes()
        assert len(made.digest) == 16
        assert (await compiler.compile(regex("a{2,4}"))).digest != made.digest
        with pytest.raises(RequestError) as refused:
            compile_source(regex("("))
        assert await failure_of(compiler, "(") == refused.value.failure


async def test_what_was_compiled_or_refused_is_kept() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        first, second = await asyncio.gather(compiler.compile(regex("a")), compiler.compile(regex("a")))
        assert first.compiled == second.compiled == b"1 a"
        assert (await compiler.compile(regex("b"))).compiled == b"2 b"
        assert await failure_of(compiler, "refuse") == Failure(400, "no", "c", "p")
        assert await failure_of(compiler, "refuse") == Failure(400, "no", "c", "p")
        assert (await compiler.compile(regex("c"))).compiled == b"4 c"
        assert (await compiler.compile(regex("a"))).compiled == b"1 a"


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        for text in "abac":
            await compiler.compile(regex(text))
        assert (await compiler.compile(regex("a"))).compiled == b"1 a"
        assert (await compiler.compile(regex("b"))).compiled == b"4 b"
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", 6)
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        for text in "ab":
            await compiler.compile(regex(text))
        assert (await compiler.compile(regex("a"))).compiled == b"3 a"


async def test_a_grammar_that_takes_too_long_is_refused_and_the_worker_replaced() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN, limit_s=0.05)) as compiler:
        slow = await failure_of(compiler, "hang")
        assert (slow.status, slow.code) == (400, "grammar_too_large")
        assert compiler.pid is None


async def test_a_grammar_that_took_too_long_is_tried_again_when_asked_for_again(tmp_path: Path) -> None:
    hangs_once = str(tmp_path / "was here")
    async with lived(GrammarCompiler(main=FAKE_MAIN, limit_s=1.0)) as compiler:
        assert (await failure_of(compiler, hangs_once)).code == "grammar_too_large"
        assert (await compiler.compile(regex(hangs_once))).compiled == b"1 " + hangs_once.encode()


async def test_a_grammar_that_burns_the_workers_time_is_too_large() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        burnt = await failure_of(compiler, "burn")
        assert (burnt.status, burnt.code) == (400, "grammar_too_large")


async def test_the_death_of_the_worker_fails_its_grammar_alone() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        died, made = await asyncio.gather(
            failure_of(compiler, "die"), compiler.compile(regex("a")), return_exceptions=True
        )
        assert isinstance(died, Failure)
        assert (died.status, died.code) == (503, "grammar_compiler_died")
        assert died.retry_after_s is not None
        assert not isinstance(made, BaseException)
        assert made.compiled == b"1 a"


async def test_a_worker_that_died_meanwhile_is_replaced() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN)) as compiler:
        await compiler.compile(regex("a"))
        assert compiler.pid is not None
        os.kill(compiler.pid, signal.SIGKILL)
        assert (await compiler.compile(regex("b"))).compiled == b"1 b"


async def test_a_worker_that_cannot_be_started_is_told() -> None:
    for main in (("/nonexistent",), (sys.executable, "-c", "")):
        async with lived(GrammarCompiler(main=main)) as compiler:
            assert (await failure_of(compiler, "a")).status == 503


async def test_too_many_that_wait_are_turned_away_and_whoever_leaves_makes_room() -> None:
    async with lived(GrammarCompiler(main=FAKE_MAIN, limit_s=60, most_waiting=2)) as compiler:
        holding = asyncio.ensure_future(compiler.compile(regex("hang")))
        waiting = asyncio.ensure_future(compiler.compile(regex("a")))
        await asyncio.sleep(0)
        full = await failure_of(compiler, "b")
        assert (full.status, full.code) == (429, "grammar_queue_full")
        assert full.retry_after_s is not None
        while compiler.pid is None:  # noqa: ASYNC110 (a process on its way signals nobody)
            await asyncio.sleep(0)
        pidfd = os.pidfd_open(compiler.pid)
        holding.cancel()
        assert (await waiting).compiled == b"1 a"
        assert select.select([pidfd], [], [], 30)[0] == [pidfd]  # the worker ended with the work nobody wanted
        os.close(pidfd)
        assert (await compiler.compile(regex("b"))).compiled == b"2 b"
        with pytest.raises(asyncio.CancelledError):
            await holding


async def test_a_closed_compiler_compiles_nothing() -> None:
    compiler = GrammarCompiler(main=FAKE_MAIN)
    await compiler.compile(regex("a"))
    await compiler.close()
    assert (await failure_of(compiler, "b")).code == "engine_stopped"
    await compiler.close()


PARENT = """
import asyncio, structlog
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
from asyncpage.compiler import GrammarCompiler
from asyncpage.grammar.source import GrammarSource

async def main():
    compiler = GrammarCompiler()
    await compiler.compile(GrammarSource("regex", "a"))
    print(compiler.pid, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


def test_the_worker_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        parent.kill()
        assert select.select([pidfd], [], [], 30)[0] == [pidfd]
        os.close(pidfd)
