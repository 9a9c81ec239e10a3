"""A batch goes through the server's own routes: every request has one answer, in whatever order."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asyncpage.cli.batch.request_line import BatchRequest
from asyncpage.cli.batch.result_file import ResultFile
from asyncpage.cli.batch.run import run_requests
from asyncpage.errors import AsyncpageError
from tests.server.conftest import EchoEngine


def asked(name: str, **body: Any) -> BatchRequest:
    return BatchRequest(name, "/v1/completions", {"prompt": name, **body})


async def run(
    engine: EchoEngine, folder: Path, *requests: BatchRequest, at_once: int = 4, is_over: bool = False
) -> tuple[list[dict[str, Any]], list[bool]]:
    """What the output holds afterwards, and what was told of each answer of this run."""
    path = folder / "out.jsonl"
    told: list[bool] = []
    results = ResultFile(path, [request.custom_id for request in requests])
    try:
        await run_requests(
            engine, iter(requests), results, at_once=at_once, is_over=lambda: is_over, on_answer=told.append
        )
    finally:
        results.close()
    return [json.loads(line) for line in path.read_text().splitlines()], told


@pytest.fixture
async def echo() -> EchoEngine:
    return EchoEngine()


async def test_every_request_has_one_answer_in_the_batch_format(echo: EchoEngine, tmp_path: Path) -> None:
    names = [f"request {number}" for number in range(50)]
    found, told = await run(echo, tmp_path, *map(asked, names))
    assert Counter(line["custom_id"] for line in found) == Counter(names)
    assert len({line["id"] for line in found}) == 50
    assert told == [True] * 50
    for line in found:
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["error"] is None
        assert (line["response"]["status_code"], line["response"]["request_id"][:4]) == (200, "req-")
        assert line["response"]["body"]["choices"][0]["text"] == line["custom_id"][:16]


async def test_each_url_is_its_route(echo: EchoEngine, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    found, _ = await run(echo, tmp_path, BatchRequest("a", "/v1/chat/completions", chat))
    assert found[0]["response"]["body"]["choices"][0]["message"]["content"] == "hi"


async def test_errors_are_answers_of_their_own_lines(echo: EchoEngine, tmp_path: Path) -> None:
    requests = (
        asked("good"),
        asked("bad", n=0),
        asked("strange", model="gpt-4"),
        BatchRequest("unsendable", fault="method must be POST"),
    )
    found, told = await run(echo, tmp_path, *requests)
    lines = {line["custom_id"]: line for line in found}
    assert lines["bad"]["response"]["status_code"] == 400
    assert lines["bad"]["response"]["body"]["error"]["param"] == "n"
    assert lines["strange"]["response"]["status_code"] == 404
    assert (lines["unsendable"]["response"], lines["unsendable"]["error"]) == (
        None,
        {"code": "invalid_request", "message": "method must be POST"},
    )
    assert sorted(told) == [False, False, False, True]


async def test_what_is_answered_is_not_asked_again(echo: EchoEngine, tmp_path: Path) -> None:
    first, _ = await run(echo, tmp_path, asked("a"), asked("b"))
    echo.submitted.clear()
    found, told = await run(echo, tmp_path, asked("a"), asked("c"), asked("b"))
    assert found[:2] == first
    assert (found[2]["custom_id"], told) == ("c", [True])
    assert len(echo.submitted) == 1


async def test_no_more_run_at_once_than_was_said(echo: EchoEngine, tmp_path: Path) -> None:
    echo.hold()
    running = asyncio.ensure_future(run(echo, tmp_path, *(asked(f"r{number}") for number in range(9)), at_once=3))
    most = 0
    for _ in range(3):
        await echo.until(lambda: len(echo.runs) == 3)
        most = max(most, len(echo.runs))
        echo.release()
        await echo.until(lambda: not echo.runs)
        echo.hold()
    echo.release()
    found, _ = await running
    assert (len(found), most) == (9, 3)


async def test_a_full_queue_is_asked_again(echo: EchoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def soon(delay_s: float) -> None:
        if delay_s:
            waited.append(delay_s)
            echo.max_queue = 10
        await sleep(0)

    echo.max_queue = 0
    monkeypatch.setattr("asyncpage.cli.batch.run.asyncio.sleep", soon)
    found, told = await run(echo, tmp_path, asked("a"), at_once=1)
    assert (found[0]["response"]["status_code"], told, waited) == (200, [True], [3.0])


async def test_what_a_dead_engine_says_is_no_answer(echo: EchoEngine, tmp_path: Path) -> None:
    assert await run(echo, tmp_path, asked("a"), is_over=True) == ([], [])


async def test_a_run_that_is_cut_short_leaves_nothing_running_and_no_half_line(
    echo: EchoEngine, tmp_path: Path
) -> None:
    echo.hold()
    running = asyncio.ensure_future(run(echo, tmp_path, asked("a"), asked("b")))
    await echo.until(lambda: len(echo.runs) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not echo.runs
    assert (tmp_path / "out.jsonl").read_text() == ""
    echo.release()
    assert len((await run(echo, tmp_path, asked("a"), asked("b")))[0]) == 2


async def test_results_that_cannot_be_written_end_the_run(
    echo: EchoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("asyncpage.cli.batch.result_file.os.write", full)
    with pytest.raises(AsyncpageError, match="No space left"):
        await run(echo, tmp_path, *(asked(f"r{number}") for number in range(9)))
    assert not echo.runs


async def test_nobody_else_can_reach_the_socket_and_it_is_gone_afterwards(
    echo: EchoEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    echo.hold()
    running = asyncio.ensure_future(run(echo, tmp_path, asked("a")))
    await echo.until(lambda: len(echo.runs) == 1)
    folder = tmp_path / next(name for name in os.listdir(tmp_path) if name.startswith("asyncpage-batch-"))
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "api.sock").is_socket()
    echo.release()
    await running
    assert not folder.exists()
