"""The chart room's feed over an engine whose blocks the test sets, read as the page reads it."""

from __future__ import annotations

import json
from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.config import EngineConfig
from asyncpage.errors import RequestError, UsageError
from asyncpage.lookout import EVERY_S, MOST_LOOKERS, Lookout, Sight
from asyncpage.messages import BlockChart, BlockSight, Chart, Holder, LookAt, Question, RequestId
from asyncpage.pipes.mailbox import Mailbox
from asyncpage.pipes.traffic import Passed, StepMark
from asyncpage.server.chart.frame import change, is_news, whole
from asyncpage.server.chart.index_comparison import MOST_BYTES, read_index_comparison
from asyncpage.server.config import ServerConfig
from asyncpage.simulation.stand_in import simulated_handshake
from tests.server.specimen import SCHEMAS, check

BLOCKS = 5
ROUTES = ("/events/chart", "/debug/block/1")


def chart(owners: list[int], references: list[int], named: list[int], requests: list[int]) -> BlockChart:
    return BlockChart(
        np.array(owners, dtype=np.int32),
        np.array(references, dtype=np.uint8),
        np.array(named, dtype=np.bool_),
        np.array(requests, dtype=np.int64),
    )


BLANK = chart([-1] * BLOCKS, [0] * BLOCKS, [0] * BLOCKS, [0, 0])
BUSY = chart([-1, 1, 1, -1, -1], [0, 2, 1, 0, 0], [0, 1, 0, 1, 0], [0, 7])


class _Told(Lookout):
    """Tells when it was closed."""

    on_close: Callable[[], None]

    def close(self) -> None:
        super().close()
        self.on_close()


@pytest.fixture
async def engine(make_engine: Any) -> Any:
    class ChartedEngine(make_engine):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = BLANK
            self.sights: dict[int, BlockSight] = {}
            self.failure: Exception | None = None
            self.boxes = {"scheduler": Mailbox("scheduler", 9)}
            self.looks = 0
            handshake = simulated_handshake(EngineConfig(num_kv_blocks=BLOCKS))
            self.lookout = _Told(self, self.boxes, handshake, self.tick)
            self.lookout.on_close = self._changed.set
            self.time = 0.0

        def tick(self) -> float:
            """Each look is a new one."""
            self.time += EVERY_S
            return self.time

        async def ask(self, name: str, question: Question, timeout_s: float) -> object:
            if self.failure is not None:
                raise self.failure
            if isinstance(question, LookAt):
                return self.sights.get(question.block)
            assert question == Chart()
            self.looks += 1
            self._changed.set()
            return self.blocks

    return ChartedEngine()


class Page:
    """Puts pictures together as the page does."""

    def __init__(self) -> None:
        self.columns: dict[str, np.ndarray[Any, Any]] = {}
        self.rows: dict[int, int] = {}
        self.steps: list[Any] = []
        self.about: dict[str, Any] = {}

    def take(self, frame: Mapping[str, Any]) -> None:
        blocks = frame.get("blocks")
        if blocks:
            new = {
                name: np.frombuffer(b64decode(blocks[name]), dtype=kind)
                for name, kind in (("owners", "<i4"), ("references", "u1"), ("named", "u1"))
            }
            if "at" in blocks:
                at = np.frombuffer(b64decode(blocks["at"]), dtype="<i4")
                for name, column in new.items():
                    self.columns[name][at] = column
            else:
                self.columns = {name: column.copy() for name, column in new.items()}
                assert len(self.columns["owners"]) == blocks["total"]
        if "rows" in frame:
            self.rows = dict(frame["rows"])
        self.steps += frame.get("steps", [])
        self.about = frame.get("about", self.about)

    def shows(self, chart: BlockChart) -> bool:
        columns = (chart.owners, chart.references, chart.named)
        is_same = all(np.array_equal(ours, theirs) for ours, theirs in zip(self.columns.values(), columns, strict=True))
        lives = np.flatnonzero(chart.requests)
        return is_same and self.rows == {int(row): int(chart.requests[row]) for row in lives}


async def next_frame(answer: Any) -> dict[str, Any]:
    while True:
        event = (await answer.content.readuntil(b"\n\n")).decode()
        if event.startswith("data: "):
            return json.loads(event[6:])  # type: ignore[no-any-return]


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRAME_S", "STILL_S"):
        monkeypatch.setattr(f"asyncpage.server.chart.routes.{name}", 0.001)


async def test_a_watcher_is_sent_the_whole_picture_and_then_what_changes(site, monkeypatch) -> None:
    quick(monkeypatch)
    page = Page()
    async with site.session.get(site.url + "/events/chart") as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        page.take(first := await next_frame(answer))
        assert first["kind"] == "whole"
        assert page.shows(BLANK)
        site.engine.blocks = BUSY
        page.take(second := await next_frame(answer))
        assert (second["kind"], second["state"]) == ("change", "ready")
        assert page.shows(BUSY)
        assert len(b64decode(second["blocks"]["at"])) == 3 * 4, "three blocks differ"
        for frame in (first, second):
            check(frame, SCHEMAS["ChartEvent"])
    assert {key: page.about[key] for key in ("model", "device", "block_size", "comparison", "shows_tokens")} == {
        "model": "echo",
        "device": "simulated",
        "block_size": 16,
        "comparison": None,
        "shows_tokens": True,
    }
    assert first["boxes"]["scheduler"] == {"waiting": 0, "deepest": 0, "capacity": 9, "passed": {}}
    assert first["stats"]["kv_manager"]["blocks_total"] == 10.0


async def test_nothing_is_sent_while_nothing_changes_but_numbers_are_news(site, monkeypatch) -> None:
    quick(monkeypatch)
    async with site.session.get(site.url + "/events/chart") as answer:
        await next_frame(answer)
        await site.engine.until(lambda: site.engine.looks > 20)
        await site.complete(prompt="abc")
        frame = await next_frame(answer)
        assert "blocks" not in frame
        assert frame["stats"]["scheduler"]["prompt_tokens"] == 3.0


async def test_nobody_is_asked_when_the_last_watcher_has_left(site, monkeypatch) -> None:
    quick(monkeypatch)
    engine = site.engine
    async with site.session.get(site.url + "/events/chart") as answer:
        await next_frame(answer)
        assert engine.boxes["scheduler"]._look is not None
        answer.close()
    await engine.until(lambda: engine.boxes["scheduler"]._look is None)
    looks = engine.looks
    await site.complete(prompt="abc")
    assert engine.looks == looks


async def test_watchers_are_bounded(site) -> None:
    answers = [await site.session.get(site.url + "/events/chart") for _ in range(MOST_LOOKERS)]
    refused = await site.get("/events/chart")
    assert (refused.status, refused.json["error"]["code"]) == (429, "too_many_watchers")
    assert int(refused.headers["Retry-After"]) >= 1
    for answer in answers:
        assert (await next_frame(answer))["kind"] == "whole"
        answer.close()


@pytest.mark.parametrize("end", ["drain", "stop"])
async def test_the_feed_ends_cleanly_when_the_server_does(site, end: str) -> None:
    async with site.session.get(site.url + "/events/chart") as answer:
        await next_frame(answer)
        await getattr(site.server, end)()
        assert await answer.read() == b""
    if end == "drain":
        refused = await site.get("/events/chart")
        assert (refused.status, refused.json["error"]["code"]) == (503, "draining")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (TimeoutError("no answer within 5 s from: kv_manager"), "not_answering"),
        (RequestError("the engine is dead: x", status=503, code="engine_dead"), "engine_dead"),
    ],
)
async def test_an_engine_that_does_not_answer_ends_the_feed_with_the_reason(
    site, monkeypatch, failure: Exception, code: str
) -> None:
    quick(monkeypatch)
    async with site.session.get(site.url + "/events/chart") as answer:
        await next_frame(answer)
        site.engine.failure = failure
        frame = await next_frame(answer)
        assert frame["error"]["code"] == code
        assert await answer.read() == b""
    assert (await site.get("/debug/block/1")).json["error"]["code"] == code


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("state", ["loading", "dead"])
async def test_without_an_engine_there_is_nothing_to_see(site, state: str, path: str) -> None:
    site.engine.state = state
    answer = await site.get(path)
    assert (answer.status, answer.json["error"]["code"]) == (503, state)


@pytest.mark.parametrize("path", ROUTES)
async def test_the_chart_is_guarded_like_every_route(serve, path: str) -> None:
    site = await serve(api_key=("secret",))
    site.engine.sights[1] = BlockSight(1, 0, b"", b"", b"", (), ())
    assert (await site.get(path)).status == 401
    assert (await site.get(path, Authorization="Bearer secret", Host="evil.example")).status == 403
    async with site.session.get(site.url + path, headers={"Authorization": "Bearer secret"}) as answer:
        assert answer.status == 200


async def test_the_feed_has_no_head(site) -> None:
    assert (await site.get("/events/chart", "HEAD")).status == 405


SIGHT = BlockSight(
    block=3,
    references=2,
    name=b"\x01" * 32,
    parent=b"\x02" * 32,
    tokens=array("i", [72, 105]).tobytes(),
    chain=(4, 0),
    holders=(Holder(1, RequestId(7), "cmpl-x", 0, 2),),
)
SEEN = {
    "block": 3,
    "references": 2,
    "name": "01" * 32,
    "parent": "02" * 32,
    "chain": [4, 0],
    "holders": [{"row": 1, "request": 7, "id": "cmpl-x", "group": 0, "index": 2}],
    "token_count": 2,
    "tokens": [{"id": 72, "text": "H"}, {"id": 105, "text": "i"}],
}


async def test_a_block_from_near_is_told_with_its_tokens(site) -> None:
    site.engine.sights[3] = SIGHT
    assert (await site.get("/debug/block/3")).json == SEEN
    check(SEEN, SCHEMAS["BlockSight"])
    site.engine.sights[4] = replace(SIGHT, name=b"", parent=b"", tokens=b"", chain=(), holders=())
    blank = (await site.get("/debug/block/4")).json
    check(blank, SCHEMAS["BlockSight"])
    assert (blank["name"], blank["parent"], blank["tokens"]) == (None, None, [])


@pytest.mark.parametrize("block", ["0", "9", "-1", "x", "1e3", "%31", "9" * 40, "٣"])
async def test_a_number_that_is_no_blocks_is_404_and_told(site, block: str) -> None:
    answer = await site.get(f"/debug/block/{block}")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "block_not_found"
    assert "numbered from 1 to 4" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({}, True),
        ({"api_key": ("a",)}, True),
        ({"api_key": ("a", "b")}, False),
        ({"api_key": ("a", "b"), "chart_tokens": "always"}, True),
        ({"chart_tokens": "never"}, False),
    ],
)
async def test_what_others_asked_is_shown_where_there_is_one_user(serve, settings: Any, is_shown: bool) -> None:
    site = await serve(**settings)
    site.engine.sights[3] = SIGHT
    answer = await site.get("/debug/block/3", Authorization="Bearer a")
    assert answer.json == SEEN | {"tokens": SEEN["tokens"] if is_shown else None}


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "api_key": ("a",)}, True),
        ({"host": "localhost"}, True),
        ({"host": "::1"}, True),
        ({"host": "my-machine"}, False),
        ({"host": "0.0.0.0", "uds": "/tmp/x"}, True),
    ],
)
def test_an_open_server_without_a_key_has_many_users(settings: Any, is_shown: bool) -> None:
    assert ServerConfig(**settings).shows_tokens is is_shown


def test_a_wrong_word_for_the_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="--chart-tokens"):
        ServerConfig(chart_tokens="sometimes").check()


# --- pictures ---------------------------------------------------------------------------------------------------------

block = st.tuples(st.integers(-1, 2), st.integers(0, 255), st.booleans())
pool = st.lists(block, min_size=1, max_size=12)
step = st.builds(StepMark, st.integers(1, 99), st.just(0.0), *[st.integers(0, 9)] * 5)


def sight_of(blocks: list[tuple[int, int, bool]], requests: list[int], steps: tuple[StepMark, ...]) -> Sight:
    owners, references, named = zip(*blocks, strict=True)
    boxes = {"a": Passed(1, 2, 3, {"Step": 4})}
    return Sight(1.0, chart(list(owners), list(references), list(named), requests), steps, boxes, {"a": {"b": 1.0}})


@settings(max_examples=100, deadline=None)
@given(
    pools=st.lists(st.tuples(pool, st.lists(st.integers(0, 5), min_size=3, max_size=3)), min_size=1, max_size=5),
    marks=st.lists(step, max_size=10),
    kept=st.integers(1, 10),
)
def test_a_picture_and_every_change_give_the_last_sight(pools: Any, marks: list[StepMark], kept: int) -> None:
    page, before, told = Page(), None, []
    numbered = [replace(mark, at_s=float(place + 1)) for place, mark in enumerate(marks)]
    for turn, (blocks, requests) in enumerate(pools):
        known = numbered[: (turn + 1) * 2][-kept:]  # the lookout keeps the last ones only
        told += [mark.at_s for mark in known if mark.at_s not in told and mark.at_s > max(told, default=0)]
        sight = sight_of(blocks, requests, tuple(known))
        frame = whole(sight, "ready", {}) if before is None else change(before, sight, "ready")
        page.take(json.loads(json.dumps(frame)))
        before = sight
        assert page.shows(sight.blocks)
    assert [mark[1] for mark in page.steps] == told


def test_what_only_the_looking_itself_has_moved_is_no_news() -> None:
    first = sight_of([(-1, 0, False)], [0], ())
    asked_more = replace(first, at_s=2.0, boxes={"a": Passed(0, 1, 3, {"Step": 4, "Ask": 9})})
    last = whole(first, "ready", {})
    assert not is_news(change(first, asked_more, "ready"), last)
    assert is_news(change(first, asked_more, "restarting"), last)
    assert is_news(change(first, replace(first, stats={"a": {"b": 2.0}}), "ready"), last)
    assert is_news(change(first, sight_of([(-1, 0, True)], [0], ()), "ready"), last)


# --- the comparison of the indexes ------------------------------------------------------------------------------------


def comparison() -> dict[str, Any]:
    def kind(tokens: int, text: str) -> dict[str, Any]:
        return {"dimensions": {"granularity": {"tokens_reused": tokens}, "identity": {"named": text}}, "summary": {}}

    return {"trace": "chat", "chain": kind(5, "yes"), "tree": kind(6, "no")}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], str]:
    def to_file(found: object) -> str:
        path = tmp_path / "index.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return str(path)

    return to_file


async def test_a_comparison_that_was_run_is_shown(serve, write: Callable[[object], str]) -> None:
    site = await serve(index_comparison=write(comparison()))
    async with site.session.get(site.url + "/events/chart") as answer:
        frame = await next_frame(answer)
    assert frame["about"]["comparison"] == {
        "trace": "chat",
        "dimensions": {"granularity": {"tokens_reused": [5, 6]}, "identity": {"named": ["yes", "no"]}},
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([1], "does not hold the figures"),
        ({"trace": "x", "chain": {}, "tree": {}}, "does not hold the figures"),
        ({**comparison(), "tree": {"dimensions": {"granularity": {}}}}, "does not hold the figures"),
        ({**comparison(), "chain": {"dimensions": {"granularity": {"tokens_reused": [1]}}}}, "does not hold"),
        (" " * (MOST_BYTES + 1), "more than 1048576 bytes"),
    ],
)
def test_something_else_is_refused_with_what_to_type(
    write: Callable[[object], str], found: object, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        read_index_comparison(write(found))
    assert "asyncpage simulate --compare-index --json" in str(refused.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_index_comparison("/nowhere/index.json")
