"""Overload: a bounded queue, bounded buffers, bounded requests."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tests.cases.answer import Answer, EventReader
from tests.cases.client import COMPLETIONS, Client
from tests.cases.invariants import until
from tests.cases.macros import expand, to_json
from tests.cases.model_folder import Model
from tests.cases.process_state import memory_bytes
from tests.cases.suite import LONG_BLOCKS, Run, Suite, covers


async def _burst(run: Run, clients: int, **fields: Any) -> list[Answer]:
    gathered = asyncio.gather(*(run.client.complete(**fields) for _ in range(clients)))
    while not gathered.done():
        for path in ("/health", "/metrics"):
            answer = await run.client.get(path)
            assert answer.status == 200
            assert answer.seconds < 0.2 * run.suite.slack * 4
        await asyncio.sleep(0.05)
    return await gathered


@covers("OVL-01")
async def test_what_the_queue_cannot_hold_is_turned_away_at_once(suite: Suite, tiny: Model) -> None:
    clients = 2000 if suite.thorough else 200
    async with suite.on(tiny) as run:
        run.growth = 50 << 20
        for _ in range(2):
            answers = await _burst(run, clients, prompt="x", max_tokens=64, ignore_eos=True)
            taken = [answer for answer in answers if answer.status == 200]
            refused = [answer for answer in answers if answer.status != 200]
            assert len(taken) >= 40
            assert refused
            assert all(answer.finish() == "length" for answer in taken)
            for answer in refused:
                assert answer.status in (429, 503)
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.error["message"]
        for fields in ({"prompt": "x", "n": 41}, {"prompt": ["x"] * 41}, {"prompt": ["x"] * 7, "n": 6}):
            too_many = await run.client.complete(max_tokens=1, **fields)
            assert too_many.status in (400, 429)  # more children than the queue and the batch hold together
        filler = [
            asyncio.ensure_future(run.client.complete(prompt="x", max_tokens=150, ignore_eos=True)) for _ in range(20)
        ]
        await asyncio.sleep(0.1)
        whole = await run.client.complete(prompt=["x"] * 15, n=2, max_tokens=1)
        assert whole.status == 429  # all thirty or none
        part = await run.client.complete(prompt="y", max_tokens=1)
        assert part.status == 200
        await asyncio.gather(*filler)
        before = memory_bytes(run.server.pid)
        for _ in range(20 if suite.thorough else 1):
            await _burst(run, 500 if suite.thorough else 300, prompt="x", max_tokens=8, ignore_eos=True)
        assert memory_bytes(run.server.pid) - before < 50 << 20


async def _deaf(run: Run, fields: dict[str, Any]) -> socket.socket:
    """A connection that asks for much and reads nothing."""
    body = to_json(expand(fields, run.client.names))
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", run.server.port))
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(peer, head.encode() + body)
    return peer


async def _slow(run: Run, fields: dict[str, Any], bytes_a_s: int) -> Answer:
    """A reader that takes little at a time, and everything in the end."""
    heard = await run.client.trickle(COMPLETIONS, fields, bytes_at_once=bytes_a_s // 50, pause_s=0.02)
    _, _, rest = heard.partition(b"\r\n\r\n")
    events = EventReader()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        events.feed(rest[:length])
        rest = rest[length + 2 :]
    answer = Answer(COMPLETIONS, 200, {}, b"", 0.0, is_stream=True)
    events.fill(answer)
    return answer


async def _gap(run: Run) -> float:
    """The typical time between two tokens of eight normal clients."""
    fields = {"prompt": "normal", "max_tokens": 60, "ignore_eos": True, "stream": True}
    answers = await asyncio.gather(*(run.client.complete(**fields) for _ in range(8)))
    gaps = sorted((answer.seconds - (answer.first_s or 0)) / 60 for answer in answers)
    return gaps[4]


@covers("OVL-02")
async def test_readers_that_do_not_read_cost_themselves_only(suite: Suite, tiny_long: Model) -> None:
    deaf = 200 if suite.thorough else 40
    fields = {"model": "$M", "prompt": "x", "max_tokens": 20_000, "logprobs": 20, "stream": True, "ignore_eos": True}

    async def as_many_that_read(client: Client) -> None:
        """The memory of a row is there from its first use on, whoever is served in it."""
        await asyncio.gather(*(client.post(COMPLETIONS, {**fields, "max_tokens": 20}) for _ in range(deaf)))

    async with suite.on(tiny_long, num_kv_blocks=LONG_BLOCKS, max_model_len=131072, first=as_many_that_read) as run:
        run.growth = 50 << 20
        quiet = min([await _gap(run) for _ in range(3)])
        before = memory_bytes(run.server.pid)
        peers = [await _deaf(run, fields) for _ in range(deaf)]
        try:

            async def cut() -> str:
                left = (await run.client.gauges())["num_requests_running"]
                return f"{left} streams still run for readers that do not read" if left else ""

            await until(cut, 60.0 * suite.slack)  # each is let go on until its buffer is full
            assert memory_bytes(run.server.pid) - before < 50 << 20
            assert min([await _gap(run) for _ in range(3)]) < 1.2 * quiet * suite.slack
        finally:
            for peer in peers:
                peer.close()
        slow = {**fields, "max_tokens": 40, "temperature": 0, "logprobs": None, "return_token_ids": True}
        whole = await run.client.post(COMPLETIONS, {**slow, "stream": False})
        steady = await _slow(run, slow, bytes_a_s=100 if suite.thorough else 6000)
        assert steady.text() == whole.text()
        assert steady.token_ids() == whole.token_ids()


@covers("OVL-04")
async def test_a_request_that_multiplies_work_is_refused_before_any(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        before = memory_bytes(run.server.pid)
        for request in run.case.requests:
            answer = await run.request(request)
            ((name, _),) = [pair for pair in request["json"].items() if pair[0] not in ("model", "max_tokens")
                            and (pair[0] != "prompt" or pair[1] != "x") and pair != ("n", 1)]  # fmt: skip
            assert answer.status == 400, (name, answer.body[:300])
            assert answer.error["param"].partition(".")[0] in (name, "prompt")
            assert answer.seconds < 0.2 * suite.slack * 2, name  # a megabyte has to be sent and read first
        assert memory_bytes(run.server.pid) - before < 20 << 20
        for name, value in (("n", 1_000_000), ("stop", ["z"] * 100)):
            answer = await run.client.complete(prompt="x", max_tokens=1, **{name: value})
            assert any(word.isdigit() for word in answer.error["message"].split())  # the limit, in the error
