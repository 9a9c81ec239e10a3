"""Processes that die: requests go on or end, nothing stays behind, and a start that fails says why."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cases.answer import Answer
from tests.cases.invariants import ready, sing, until
from tests.cases.model_folder import Model
from tests.cases.process_state import family, is_alive, memfds, segments
from tests.cases.server import START_S, Attempt, Server, attempt, command, environment
from tests.cases.suite import Run, Suite, covers

GRAMMAR = {"structured_outputs": {"regex": "[a-z]{20}"}}


def mixed(request: int) -> dict[str, Any]:
    """Greedy and seeded, streamed and not, one choice and two, some of them held to a grammar."""
    return {
        "prompt": f"request {request}", "max_tokens": 60, "seed": request,
        "temperature": 0 if request % 2 else 0.8, "stream": request % 3 == 0, "n": 2 if request % 5 == 0 else 1,
        **(GRAMMAR if request % 7 == 3 else {"ignore_eos": True}),
    }  # fmt: skip


def texts(answer: Answer, request: int) -> list[str]:
    return [answer.text(index) for index in range(mixed(request)["n"])]


async def _crowd(run: Run, count: int = 50) -> list[Answer]:
    return await asyncio.gather(*(run.client.complete(**mixed(request)) for request in range(count)))


@covers("CRS-01")
async def test_an_executor_that_is_killed_costs_a_pause_and_no_token(suite: Suite, tiny: Model) -> None:
    """Stricter than the case: streams go on where they stopped, so no request ends in an error."""
    async with suite.on(tiny, max_queue=1024) as run:
        grammar = await run.client.complete(prompt="g", max_tokens=30, **GRAMMAR)
        assert re.fullmatch("[a-z]{20}", grammar.text())
        undisturbed = [texts(answer, request) for request, answer in enumerate(await _crowd(run))]
        randomness = random.Random(7)
        run.client.allowed = {503}
        for turn in range(100 if suite.thorough else 2):
            victim = run.server.executor
            assert victim is not None
            crowd = asyncio.ensure_future(_crowd(run)) if turn % 4 else None  # every fourth kill finds it idle
            await asyncio.sleep(randomness.uniform(0.0, 1.0) if crowd else 0)
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()

            async def noticed(victim: int = victim) -> str:
                answer = await run.client.get("/ready")
                changed = run.server.executor not in (victim, None)
                return "" if answer.status == 503 or changed else "/ready is still 200"

            await until(noticed, 2.0 * suite.slack)
            assert (await run.client.get("/health")).status == 200
            await until(lambda: ready(run.client), START_S)
            assert time.monotonic() - killed < START_S
            assert victim not in run.server.family()  # no zombie either
            for request, answer in enumerate(await crowd if crowd else ()):
                if answer.status == 503:  # it came while the executor was away: told so at once, with a time
                    assert "Retry-After" in answer.headers
                else:
                    assert texts(answer, request) == undisturbed[request]
            again = await run.client.complete(prompt="g", max_tokens=30, **GRAMMAR)
            assert re.fullmatch("[a-z]{20}", again.text())
        run.is_spent = True


def _limited(kind: int, limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (limit, limit))


def _fault(name: str, model: Model, folder: Path) -> tuple[Path, list[str], Callable[[], None] | None]:
    """A model, flags and limits that cannot work."""
    copy = folder / f"fault-{name}"
    shutil.copytree(model.folder, copy)
    match name:
        case "pool larger than memory":
            return copy, ["--kv-cache-bytes", "4000GiB"], None
        case "missing weights":
            (copy / "model.safetensors").unlink()
            return copy, [], None
        case "wrong shapes":
            config = json.loads((copy / "config.json").read_text())
            (copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
            return copy, [], None
        case "little address space":
            return copy, ["--num-kv-blocks", "300000"], _limited(resource.RLIMIT_AS, 2 << 30)
        case _:
            raise AssertionError(name)


@covers("CRS-03")
async def test_a_start_that_fails_ends_soon_and_says_why(suite: Suite, tiny: Model) -> None:
    faults = ("pool larger than memory", "missing weights", "wrong shapes", "little address space")
    for name in faults:
        path, flags, before = _fault(name, tiny, suite.pool.folder)
        found = await asyncio.to_thread(lambda p=path, f=flags, b=before: attempt(p, ["--port", "0", *f], before=b))
        _check_failed_start(name, found, 10.0 * suite.slack)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = await asyncio.to_thread(attempt, tiny.folder, ["--port", str(port)])
        _check_failed_start("port taken", found, 10.0 * suite.slack)
        assert str(port) in found.log
        assert "--port" in found.log
    for share in (0.1, 0.5, 0.9):
        await asyncio.to_thread(_kill_worker_while_loading, tiny, share)
    server = await asyncio.to_thread(
        Server, tiny, ["--max-restarts", "0", "--num-kv-blocks", "64"], suite.pool.log_file()
    )
    victim = server.executor
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert await asyncio.to_thread(server.process.wait, 10 * suite.slack) not in (0, None)
    server.stop()
    assert "died" in server.log() or "restart" in server.log()


def _check_failed_start(name: str, found: Attempt, limit_s: float) -> None:
    assert found.code != 0, (name, found)
    assert found.seconds < limit_s, (name, found)
    last = found.log.strip().splitlines()[-1]
    assert last.startswith("asyncpage: "), (name, found)
    assert len(last) > 30, (name, found)
    assert "Traceback" not in found.log, (name, found)


def _kill_worker_while_loading(model: Model, share: float) -> None:
    """The front end must not wait for a worker that died on the way."""
    process = subprocess.Popen(
        command(model.folder, ["--port", "0", "--max-restarts", "0"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment(),
    )  # fmt: skip
    try:
        end = time.monotonic() + START_S
        while len(family(process.pid)) < 2 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(share)
        for child in family(process.pid)[1:]:
            os.kill(child, signal.SIGKILL)
        out, _ = process.communicate(timeout=START_S)
        assert process.returncode != 0
        assert b"Traceback" not in out, out
    finally:
        process.kill()
        process.communicate()


@covers("CRS-04")
async def test_children_of_a_killed_server_go_and_its_port_is_free(suite: Suite, tiny: Model) -> None:
    port = 0
    for _ in range(50 if suite.thorough else 1):
        server = await asyncio.to_thread(
            lambda port=port: Server(tiny, ["--num-kv-blocks", "256"], suite.pool.log_file(), port=port)
        )
        port = server.port
        client = suite.client(server)
        try:
            await client.open()
            canary = await sing(client)
            load = [
                asyncio.ensure_future(
                    client.complete(prompt=f"load {number}", max_tokens=500, ignore_eos=True, stream=True)
                )
                for number in range(20)
            ]
            await asyncio.sleep(0.2)
            members = server.family()
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            for outcome in await asyncio.gather(*load, return_exceptions=True):
                assert isinstance(outcome, Exception)  # the connection is closed, nobody waits

            async def gone(members: list[int] = members) -> str:
                return ", ".join(f"{pid} lives" for pid in members if is_alive(pid))

            await until(gone, 5.0 * suite.slack)
            assert canary
        finally:
            await client.close()
            server.stop(signal.SIGKILL)
    again = await asyncio.to_thread(lambda: Server(tiny, ["--num-kv-blocks", "256"], suite.pool.log_file(), port=port))
    client = suite.client(again)
    try:
        await client.open()
        assert await sing(client) == canary
    finally:
        await client.close()
        assert again.stop() == 0


def _own_files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@covers("CRS-06")
async def test_nothing_of_a_run_stays_on_the_machine(suite: Suite, tiny: Model, tmp_path: Path) -> None:
    """The rings are anonymous memory: no name to guess, to plant or to leave behind."""
    ends: list[Callable[[Server], int]] = [
        lambda server: server.stop(signal.SIGTERM),
        lambda server: server.stop(signal.SIGINT),
        lambda server: server.stop(signal.SIGKILL),
    ]
    env = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    pairs = [await asyncio.to_thread(_start_with, suite, tiny, env, umask) for umask in (0o000, 0o077)]
    third = await asyncio.to_thread(_start_with, suite, tiny, env, 0o022) if suite.thorough else None
    servers = [*pairs, *([third] if third else [])]
    try:
        for server in servers:  # side by side, and each answers for itself
            client = suite.client(server)
            await client.open()
            assert (await client.complete(prompt="x", max_tokens=4)).status == 200
            await client.close()
            members = server.family()
            assert len(members) == 2
            for pid in members:
                assert not segments(pid)
                for memory in memfds(pid):
                    found = memory.stat()
                    assert stat.S_IMODE(found.st_mode) == 0o600
                    assert found.st_uid == os.getuid()
            assert not _own_files(tmp_path)
    finally:
        codes = [end(server) for end, server in zip(ends, reversed(servers), strict=False)]
    assert codes[0] == 0
    assert codes[1] in (0, -signal.SIGINT, 1)
    for server in servers:
        assert "resource_tracker" not in server.log()
        assert "leaked" not in server.log()
    assert not _own_files(tmp_path)


def _start_with(suite: Suite, model: Model, env: dict[str, str], umask: int) -> Server:
    return Server(model, ["--num-kv-blocks", "64"], suite.pool.log_file(), env=env, umask=umask)
