"""A real server under load is recorded, loses its executor, and is replayed to the last decision."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from asyncpage.cli.main import main
from asyncpage.config import EngineConfig
from asyncpage.core import policy
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import RequestError
from asyncpage.messages import RequestOptions, TokenPrompt
from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import RECEIVED
from asyncpage.simulation.journal_steps import journal_steps
from tests.e2e.oracle import answer, check_idle

STREAMS = 40


def prompt_of(stream: int) -> list[int]:
    return [(stream % 5) * 40 + place % 37 + 3 for place in range(6 + stream % 50)] + [stream + 300]


async def test_a_real_server_under_load_is_replayed_to_the_last_decision(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.journal"
    engine = await AsyncEngine.start(
        EngineConfig(
            model=str(tiny_model),
            max_num_seqs=12,
            max_model_len=192,
            block_size=8,
            num_kv_blocks=60,
            max_num_batched_tokens=48,
            cpu_threads=1,
            journal=str(path),
        )
    )
    seen = 0

    def kill_once() -> None:
        nonlocal seen
        seen += 1
        if seen == 400:
            assert engine.executor.pid is not None
            os.kill(engine.executor.pid, signal.SIGKILL)

    async def abandoned(stream: int) -> None:
        parts = engine.generate(TokenPrompt(b"\x05\x00\x00\x00" * 9), SamplingParams(max_tokens=90, n=2))
        for _ in range(1 + stream % 3):
            await anext(parts, None)
        await parts.aclose()

    async def late(stream: int) -> None:
        options = RequestOptions(deadline=engine.now() + 0.05, label=f"late-{stream}")
        with suppress(RequestError):
            async for _ in engine.generate(prompt_of(stream), SamplingParams(max_tokens=90), options):
                pass

    try:
        sampling = SamplingParams(max_tokens=90, ignore_eos=True, temperature=0.7, seed=1)
        await asyncio.gather(
            *(answer(engine, prompt_of(i), replace(sampling, seed=i), kill_once) for i in range(STREAMS)),
            *(abandoned(i) for i in range(8)),
            *(late(i) for i in range(8)),
        )
        stats = (await engine.ping(30.0))["scheduler"]
        await check_idle(engine)
    finally:
        await engine.stop()
    assert stats["executor_losses"] == 1
    assert stats["preemptions"] > 0
    inputs = {record.name for record in JournalReader(path).records() if record.kind == RECEIVED}
    assert inputs >= {"Admit", "Cancel", "Expired", "ExecutorLost", "ExecutorReady", "StepDone"}

    assert main(["replay", str(path)]) == 0
    assert f"{STREAMS + 8 * 2 + 8} requests" in capsys.readouterr().out
    steps = journal_steps(path, warm_up_steps=0).steps
    assert steps.tokens.sum() >= STREAMS * 90
    assert (steps.seconds > 0).all()

    monkeypatch.setitem(policy.VICTIM_POLICIES, "last-admitted", policy.VICTIM_POLICIES["least-computed"])
    assert main(["replay", str(path)]) == 1
    assert "victims" in capsys.readouterr().out


@pytest.mark.parametrize("index", ["chain", "tree"])
async def test_a_restarted_server_with_blocks_in_files_is_replayed(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], index: str
) -> None:
    """Names of blocks, which no journal tells, are found again: what the first run stored, the second one loads."""
    system = [(place * place * 7 + 3 * place) % 500 + 3 for place in range(100)]

    async def run(journal: Path) -> float:
        engine = await AsyncEngine.start(
            EngineConfig(
                model=str(tiny_model),
                placement="inproc",
                max_num_seqs=4,
                block_size=8,
                num_kv_blocks=40,
                cpu_threads=1,
                prefix_index=index,
                kv_dir=str(tmp_path / "kv"),
                journal=str(journal),
            )
        )
        try:
            for number in range(6):
                data = b"".join(token.to_bytes(4, "little") for token in [*system, number + 3])
                options = RequestOptions(cache_salt=("", "", "a tenant")[number % 3])
                sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
                async for _ in engine.generate(TokenPrompt(data), sampling, options):
                    pass
            async with asyncio.timeout(60):
                stats = (await engine.ping(30.0))["kv_manager"]
                while stats["file_blocks"] < 24:  # twelve blocks of the system prompt for each of two tenants
                    stats = (await engine.ping(30.0))["kv_manager"]
            return (await engine.ping(30.0))["archive"]["fetched"]
        finally:
            await engine.stop()

    assert await run(tmp_path / "first") == 0
    assert await run(tmp_path / "second") > 0
    for name, told in (("first", {"Store"}), ("second", {"Fetch", "Touch"})):
        sent = {record.name for record in JournalReader(tmp_path / name).records() if record.to == "archive"}
        assert sent >= told
        assert main(["replay", str(tmp_path / name)]) == 0
        assert "every decision is the same" in capsys.readouterr().out
