"""A soak over HTTP: closed-loop clients of every kind in a pool too small for them; nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cases import invariants
from tests.cases.client import COMPLETIONS, Client
from tests.cases.macros import Names
from tests.cases.model_folder import Model
from tests.cases.server import Server
from tests.cases.suite import warm_up
from tests.cases.tiny import write_tiny

CLIENTS = 64
SLACK = 5.0  # other tests share the machine

# Shares of what clients do, in percent; half of those who only ask do so in a stream.
KINDS: Mapping[str, int] = {"ask": 60, "choices": 15, "abort": 10, "invalid": 5, "slow": 10}


def fields_of(request: int) -> dict[str, Any]:
    """One of 200 requests, each with its one right answer: greedy, or seeded."""
    rng = random.Random(request)
    return {
        "prompt": [rng.randrange(3, 490) for _ in range(rng.randint(1, 60))],
        "max_tokens": rng.randint(1, 60),
        "temperature": rng.choice((0, 0.9)),
        "seed": request,
        "ignore_eos": True,
    }


class Soak:
    """The clients, what they were answered, and what was wrong with it."""

    def __init__(self, client: Client, seed: int, until_s: float) -> None:
        self.client = client
        self.until_s = until_s
        self.counts: Counter[str] = Counter()
        self._right: dict[tuple[int, int], str] = {}
        self._random = random.Random(seed)

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        while time.monotonic() < self.until_s:
            (kind,) = self._random.choices(list(KINDS), list(KINDS.values()))
            await getattr(self, f"_{kind}")(self._random.randrange(200))
            self.counts[kind] += 1

    async def _ask(self, request: int, n: int = 1) -> None:
        stream = self._random.random() < 0.5
        answer = await self.client.complete(**fields_of(request), n=n, stream=stream)
        assert answer.status == 200, answer.body
        assert not stream or answer.done == 1
        for index in range(n):
            assert answer.finish(index) == "length"
            right = self._right.setdefault((request, index), answer.text(index))
            assert answer.text(index) == right, f"request {request}, choice {index}"

    async def _choices(self, request: int) -> None:
        await self._ask(request, n=3)

    async def _abort(self, request: int) -> None:
        fields = {**fields_of(request), "model": "$M", "max_tokens": 400, "stream": self._random.random() < 0.5}
        after_s = self._random.choice((0.0, 0.01, 0.1, 0.5))
        await self.client.leave(COMPLETIONS, fields, after_s, how=self._random.choice(("fin", "rst", "upload")))

    async def _invalid(self, request: int) -> None:
        wrong = self._random.choice(({"temperature": -1}, {"n": 0}, {"prompt": []}, {"logit_bias": {"x": 1}}))
        answer = await self.client.complete(**{**fields_of(request), **wrong})
        assert answer.status == 400

    async def _slow(self, request: int) -> None:
        """Reads a stream a little at a time, and everything in the end."""
        fields = {**fields_of(request), "model": "$M", "stream": True}
        heard = await self.client.trickle(COMPLETIONS, fields)
        assert heard.count(b"data: [DONE]") == 1


async def soak(model: Model, folder: Path, seconds: float) -> Counter[str]:
    """Errors: `AssertionError` for anything lost, mixed up or left behind."""
    flags = ["--num-kv-blocks", "96", "--block-size", "8", "--max-num-seqs", "32", "--max-queue", "512"]
    server = await asyncio.to_thread(Server, model, flags, folder / "soak.log")
    try:
        client = Client(server.url, server.port, Names({"$M": model.folder.name}, model.vocab_size, model.ids))
        before = await warm_up(server, client)
        await client.open()
        soaking = Soak(client, seed=1, until_s=time.monotonic() + seconds)
        await soaking.run()
        gauges = await client.gauges()
        assert gauges["num_preemptions_total"] > 0  # else the pool was no trial
        await invariants.check(server, client, before, SLACK, growth=64 << 20)
        return soaking.counts
    finally:
        assert server.stop() == 0


@pytest.fixture
def soak_model(tmp_path: Path) -> Model:
    return write_tiny(tmp_path / "tiny")


@pytest.mark.long
async def test_sixty_four_clients_for_twenty_seconds(soak_model: Model, tmp_path: Path) -> None:
    counts = await soak(soak_model, tmp_path, 20.0)
    assert set(counts) == set(KINDS)


@pytest.mark.long
async def test_sixty_four_clients_for_ten_minutes(soak_model: Model, tmp_path: Path) -> None:
    counts = await soak(soak_model, tmp_path, 600.0)
    assert sum(counts.values()) > 1000
