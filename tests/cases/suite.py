"""Runs cases against servers: starts what a case needs, shares it with later ones, and checks I0 behind each.

Tests take the `suite` fixture and say `@covers("ID")`.

INVARIANT: a case ends passed, refused by name, or failed; never unjudged.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cases import invariants
from tests.cases.answer import Answer
from tests.cases.case import Case, all_cases
from tests.cases.client import Client
from tests.cases.flags import flags_for
from tests.cases.macros import Names, sweep
from tests.cases.model_folder import Model
from tests.cases.server import Attempt, DidNotStart, Server
from tests.cases.verdict import MAY_LACK, PROPERTY, Refused

ALIVE_AT_ONCE = 3
KEY = "s3cret-key-of-the-cases"
FEW_BLOCKS = 1024
"""KV blocks where a case asks for no number: few, so that all were in use once before memory is measured."""

LONG_BLOCKS = 8300
"""Enough for one request of 131,072 tokens."""

Test = Callable[..., Awaitable[None]]


def covers(id: str, *, long: bool = False) -> Callable[[Test], Test]:
    """The test checks (a part of) this case. Extra cases and `long` parts run with `--long` only."""
    case = all_cases()[id]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        async def run(*args: Any, **kwargs: Any) -> None:
            with contextlib.suppress(Refused):  # the suite has noted it
                await test(*args, **kwargs)

        marked: Test = pytest.mark.case(id)(run)
        is_long = long or case.tier == "extra"
        return pytest.mark.long(marked) if is_long else marked

    return decorate


class Pool:
    """The servers of one test process, the longest unused ended first. `folder`: where models and logs lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._models: dict[str, Model] = {}
        self._servers: dict[tuple[str, ...], tuple[Server, invariants.Baseline]] = {}
        self._logs = 0

    def model(self, name: str, write: Callable[[Path], Model]) -> Model:
        """The model of that name, written when it is first asked for."""
        if name not in self._models:
            self._models[name] = write(self.folder / name)
        return self._models[name]

    def log_file(self) -> Path:
        self._logs += 1
        return self.folder / f"server-{self._logs}.log"

    async def server(
        self, model: Model, flags: Sequence[str], client: Callable[[Server], Client], **how: Any
    ) -> Server:
        """A running server; `how` goes to `Server`. Errors: `DidNotStart`."""
        key = (str(model.folder), *model.flags, *flags, *map(str, how.items()))
        if key in self._servers and self._servers[key][0].process.poll() is not None:
            self._servers.pop(key)[0].stop()
        if key not in self._servers:
            while len(self._servers) >= ALIVE_AT_ONCE:
                self._servers.pop(next(iter(self._servers)))[0].stop()
            server = Server(model, flags, self.log_file(), **how)
            try:
                self._servers[key] = (server, await warm_up(server, client(server)))
            except BaseException:
                server.stop()
                raise
        self._servers[key] = self._servers.pop(key)  # the last used is the last in line
        return self._servers[key][0]

    def try_start(self, model: Model) -> Attempt | None:
        """How a start failed, None if it did not."""
        try:
            Server(model, [], self.log_file()).stop()
        except DidNotStart as end:
            return end.attempt
        return None

    def first_day(self, server: Server) -> invariants.Baseline:
        return next(baseline for known, baseline in self._servers.values() if known is server)

    def forget(self, server: Server) -> None:
        """A case has left it in a state that no other may find: it is ended."""
        for key, (known, _) in list(self._servers.items()):
            if known is server:
                del self._servers[key]
                server.stop()

    def close(self) -> None:
        for server, _ in self._servers.values():
            server.stop()
        self._servers.clear()


async def warm_up(server: Server, client: Client) -> invariants.Baseline:
    """Touch what is made at first use (imports, the whole KV pool), then take the baseline."""
    await client.open()
    gauges = await client.gauges()
    models = await client.get("/v1/models")
    context = models.json["data"][0]["max_model_len"] if models.status == 200 else 64
    filled, size = 0, min(context - 2, 1000)
    while filled < min(gauges["kv_cache_blocks_total"] * 16, 20_000):
        prompt = [(filled + place * place) % 250 + 3 for place in range(size)]
        await client.complete(prompt=prompt, max_tokens=1, logprobs=1, n=2, seed=1)
        filled += size
    await client.chat("warm", max_tokens=2, stream=True, logprobs=True)
    client.complaints.clear()
    return await invariants.rest(server, client)


class Run:
    """One case on one server.

    A check may set `growth`, bytes that a process may grow; `signs`, what its log must not hold; `is_spent`, that no
    other case may have the server.
    """

    def __init__(self, suite: Suite, server: Server, client: Client) -> None:
        self.suite = suite
        self.case = suite.case
        self.server = server
        self.client = client
        self.growth = invariants.MOST_GROWTH
        self.signs = invariants.SIGNS
        self.is_spent = False

    async def table(self) -> list[Answer]:
        """Send the case's requests, one after the other."""
        return [await self.request(item) for request in self.case.requests for item in sweep(request)]

    async def request(self, request: Any) -> Answer:
        headers = request.get("headers")
        if "json" in request:
            return await self.client.post(request["path"], request["json"], headers)
        raw = request.get("raw")
        body = None if raw is None else raw.replace("$M", self.client.names.values["$M"]).encode()
        return await self.client.send(request["method"], request["path"], body, headers)


class Suite:
    """What one test has to do with its case."""

    def __init__(self, pool: Pool, case: Case, item: Any, slack: float, thorough: bool) -> None:
        """`slack`: what times are stretched by. `thorough`: repeat as often as the case says."""
        self.pool = pool
        self.case = case
        self.slack = slack
        self.thorough = thorough
        self._item = item
        item.user_properties.append((PROPERTY, f"{case.id}:"))

    def note(self, feature: str) -> None:
        """The server lacks it, and said so. Errors: `AssertionError` when this case may not meet with that."""
        assert feature in MAY_LACK.get(self.case.id, ()), f"{self.case.id}: {feature} was refused"
        self._item.user_properties.append((PROPERTY, f"{self.case.id}:{feature}"))

    def judge_start(self, attempt: Attempt) -> None:
        """Errors: `Refused` when the command line lacks a feature."""
        if attempt.lacks is not None:
            self.note(attempt.lacks)
            raise Refused(attempt.lacks)

    @contextlib.asynccontextmanager
    async def on(
        self,
        model: Model,
        *,
        key: str | None = None,
        scripted: bool = False,
        how: Mapping[str, Any] | None = None,
        first: Callable[[Client], Awaitable[None]] | None = None,
        **config: Any,
    ) -> AsyncIterator[Run]:
        """A run on a server with the case's configuration and `config`; I0 is checked at its end.

        `scripted`: the case's configuration describes its model, not its server. None leaves a setting to the server.
        `how`: what else `Server` takes. `first`: what this case uses and no other does, used once before what the
        server holds is measured.
        """
        wanted = {"num_kv_blocks": FEW_BLOCKS, **({} if scripted else self.case.config), **config}
        flags = flags_for({name: value for name, value in wanted.items() if value is not None})

        def new_client(server: Server) -> Client:
            return self.client(server, key)

        try:
            server = await self.pool.server(model, flags, new_client, **(how or {}))
        except DidNotStart as end:
            self.judge_start(end.attempt)
            raise
        client = new_client(server)
        if first is not None:
            await client.open()
            await first(client)
        before = await invariants.rest(server, client, self.pool.first_day(server).canary)
        await client.open()
        run = Run(self, server, client)
        try:
            yield run
        except Refused:
            await self._check(run, before)
            raise
        except BaseException:
            self.pool.forget(server)
            raise
        else:
            await self._check(run, before)
        finally:
            await client.close()

    def client(self, server: Server, key: str | None = None) -> Client:
        values = {"$M": server.model.folder.name, "$KEY": KEY, "$FIX": str(self.pool.folder)}
        values["$OUTSIDE_ABS"] = str(self.pool.folder.parent)
        names = Names(values, server.model.vocab_size, server.model.ids)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return Client(server.url, server.port, names, headers)

    async def _check(self, run: Run, before: invariants.Baseline) -> None:
        try:
            await invariants.check(run.server, run.client, before, self.slack, run.growth, run.signs)
        except BaseException:
            self.pool.forget(run.server)
            raise
        if run.is_spent:
            self.pool.forget(run.server)


def with_more(model: Model, *flags: str) -> Model:
    """The same folder, served with these flags too."""
    return replace(model, flags=(*model.flags, *flags))
