"""Security: no object is ever deserialised, every route is guarded, templates are caged, other origins stay out."""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import mmap
import os
import pickle
import random
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf import GGUFWriter

from asyncpage.errors import RequestError
from asyncpage.messages import ChatPrompt
from asyncpage.server.app import create_app
from asyncpage.server.config import ServerConfig
from asyncpage.server.static_page import PAGE_FILES
from asyncpage.text.chat_template import load_chat_template
from tests.cases.client import Client
from tests.cases.invariants import ready, until
from tests.cases.model_folder import Model
from tests.cases.process_state import listening, memfds
from tests.cases.server import ROOT, START_S, Server
from tests.cases.suite import KEY, Run, Suite, covers
from tests.cases.test_weights import starts
from tests.cases.tiny import vocabulary, write_tiny

UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "marshal", "dill", "cloudpickle", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "yaml.load", "torch.load"}


class Marker:
    """Unpickled, it makes a file: whoever reads it has run a stranger's code."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self._path),))


@covers("SEC-01")
async def test_the_package_holds_no_deserialiser_of_objects(suite: Suite) -> None:
    for file in sorted((ROOT / "asyncpage").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not UNSAFE_MODULES & {name.split(".")[0] for name in names}, file
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in UNSAFE_CALLS, (file, node.lineno)


def _listens_on(server: Server) -> None:
    assert listening(server.family()) == {f"tcp 127.0.0.1:{server.port}"}


@covers("SEC-01")
async def test_a_marker_is_never_executed_and_only_the_http_port_listens(
    suite: Suite, tiny: Model, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    payload = pickle.dumps(Marker(ran))
    folder = suite.pool.folder / "with-markers"
    write_tiny(folder)
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl", "training_args.bin"):
        (folder / name).write_bytes(payload)
    async with suite.on(Model(folder, tiny.vocab_size, tiny.ids)) as run:
        _listens_on(run.server)
        text = base64.b64encode(payload).decode()
        for fields in ({"cache_salt": text}, {"user": text}, {"prompt": text}, {"stop": [text[:200]]}):
            await run.client.complete(**{"prompt": "x", "max_tokens": 1, **fields})
        answer = await run.client.send("POST", "/v1/completions", payload)
        assert answer.status == 400
        run.signs = run.signs[1:]  # whoever looks at a broken ring needs the executor's last words
        await _corrupt(run, payload, 8 if suite.thorough else 2)
        _listens_on(run.server)
        run.is_spent = True
    only_pickled = suite.pool.folder / "only-pickled"
    write_tiny(only_pickled)
    (only_pickled / "model.safetensors").unlink()
    (only_pickled / "pytorch_model.bin").write_bytes(payload)
    folders = [only_pickled]
    for name in ("tokenizer.json", "config.json"):
        folders.append(suite.pool.folder / f"pickled-{name}")
        write_tiny(folders[-1])
        (folders[-1] / name).write_bytes(payload)
    found = await asyncio.to_thread(starts, [["serve", str(one), "--port", "0"] for one in folders])
    assert all(one["code"] not in (0, None) for one in found)
    assert "pickled" in found[0]["log"]
    assert not ran.exists()


async def _corrupt(run: Run, payload: bytes, losses: int) -> None:
    """Garbage in the rings while requests run, until that many executors were lost: no hang, no wrong answer."""
    rng = random.Random(3)
    fields = {"prompt": "ring", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    right = (await run.client.complete(**fields)).text()
    run.client.allowed = {500, 503}
    lost, begin = 0, (await run.client.gauges())["executor_restarts_total"]
    while lost < losses:
        victim = run.server.executor
        crowd = asyncio.gather(*(run.client.complete(**fields) for _ in range(4)))
        end = time.monotonic() + START_S
        while not crowd.done():
            assert time.monotonic() < end, "requests hang behind a corrupted ring"
            if run.server.executor == victim:  # the rings of the next one are let be, until it is up
                for path in memfds(run.server.pid):
                    _scribble(path, payload, rng)
            await asyncio.sleep(0.01)  # while messages pass
        for answer in await crowd:
            assert answer.failed or answer.text() == right
        await until(lambda: ready(run.client), START_S)
        lost = int((await run.client.gauges())["executor_restarts_total"] - begin)
    assert (await run.client.complete(**fields)).text() == right


def _scribble(path: Path, payload: bytes, rng: random.Random) -> None:
    """Flip bits, most of them near the counters and the first records, and write the marker somewhere."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:  # the memory of a dead executor goes at any moment
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size) as memory:
            for _ in range(20):
                memory[rng.randrange(4096 if rng.random() < 0.8 else size)] ^= 1 << rng.randrange(8)
            start = rng.randrange(4096)
            memory[start : start + len(payload)] = payload


PUBLIC = ("/health", "/", "/chart", "/docs")
"""The paths that want no key, with what lies under /page and /docs: whether it lives, and files of the package."""


def routes() -> list[tuple[str, str, bool]]:
    """Every route of the application: method, a path, and whether it is public."""
    engine: Any = SimpleNamespace(wall=time.time, now=time.monotonic)
    app = create_app(engine, ServerConfig(api_key=(KEY,)))
    found = []
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        is_public = path in PUBLIC or path.startswith(("/page/", "/docs/"))
        found.append((route.method, path.replace("{name}", "x").replace("{id}", "x"), is_public))
    return found


@covers("SEC-02")
async def test_every_route_wants_the_key(suite: Suite, tiny: Model) -> None:
    package = ROOT / "asyncpage" / "server" / "page"
    pages = {path: (package / file).read_bytes() for path, file, _ in PAGE_FILES}
    async with suite.on(tiny, key=KEY, api_key=KEY) as run:
        stranger = Client(run.server.url, run.server.port, run.client.names)
        await stranger.open()
        try:
            *wrong, flood = [await _as_stranger(run, stranger, request) for request in run.case.requests]
            assert wrong == [401] * 5
            assert flood in (400, 401, 431)  # a header of a megabyte is no header: the parser ends it
            for method, path, is_public in routes():
                for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Basic {KEY}"}):
                    body = b"{}" if method == "POST" else None
                    answer = await stranger.send(method, path, body, headers)
                    assert (answer.status == 401) != is_public, (method, path, answer.status)
                    if path in pages and method == "GET":
                        assert answer.body == pages[path], (
                            path
                        )  # as it lies in the package: nothing of an engine is in it
            for method, path in (("OPTIONS", "/v1/models"), ("HEAD", "/v1/models"), ("GET", "/no/such/path"),
                                 ("GET", "/metrics"), ("POST", "/tokenize"), ("DELETE", "/v1/models")):  # fmt: skip
                assert (await stranger.send(method, path, None)).status == 401, (method, path)
            two = await stranger.raw(
                f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n"
                "Authorization: Bearer wrong\r\n\r\n".encode()
            )
            assert two.statuses == [401]
            for scheme in ("bearer", "BEARER", "Bearer"):
                answer = await stranger.get("/v1/models", {"Authorization": f"{scheme} {KEY}"})
                assert answer.status == 200
            if suite.thorough:
                await _time_says_nothing(stranger)
        finally:
            await stranger.close()
        assert not stranger.complaints, stranger.complaints
        assert KEY not in run.server.log()


async def _as_stranger(run: Run, stranger: Client, request: Any) -> int:
    header = request["headers"].get("Authorization", "")
    if isinstance(header, dict):
        text = header["$repeat"][0] * header["$repeat"][1]
        data = f"GET {request['path']} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {text}\r\n\r\n".encode()
        (status, *_) = (await stranger.raw(data)).statuses
        return status
    headers = {"Authorization": header.replace("$KEY", KEY)} if header else {}
    return (await stranger.get(request["path"], headers)).status


async def _time_says_nothing(stranger: Client) -> None:
    """A key that is right but for its end takes no longer than one that is wrong from the start."""
    times: dict[str, list[float]] = {KEY[:-1] + "!": [], "!" + KEY[1:]: []}
    for _ in range(10_000):
        for key, found in times.items():
            found.append((await stranger.get("/version", {"Authorization": f"Bearer {key}"})).seconds)
    means, spreads = [], []
    for found in times.values():
        kept = sorted(found)[: len(found) * 9 // 10]  # without what the machine did meanwhile
        means.append(statistics.fmean(kept))
        spreads.append(statistics.variance(kept) / len(kept))
    assert abs(means[0] - means[1]) / sum(spreads) ** 0.5 < 3


def write_bombs(folder: Path, payloads: list[str]) -> Model:
    """One template that holds all of them; the message says which is meant."""
    branches = "".join(
        f"{{% {'if' if number == 0 else 'elif'} messages[-1].content == '{number}' %}}{payload}"
        for number, payload in enumerate(payloads)
    )
    return write_tiny(folder, chat_template=branches + "{% else %}plain{% endif %}")


@covers("SEC-04")
async def test_templates_run_no_code_and_end_soon(suite: Suite, tiny: Model, outside: Path) -> None:
    (outside / "secret.txt").write_text("the secret")
    async with suite.on(tiny) as run:
        for answer in await run.table():
            assert (answer.status, answer.error["param"]) == (400, "chat_template")
        payloads = [
            request["json"]["chat_template"].replace("$OUTSIDE_ABS", str(outside)) for request in run.case.requests
        ]
    async with suite.on(suite.pool.model("bombs", lambda folder: write_bombs(folder, payloads))) as run:
        run.growth = 100 << 20  # what a bomb may take before its budget ends it
        assert (await run.client.chat("hello", max_tokens=1)).status == 200
        for number, payload in enumerate(payloads):
            asked = asyncio.ensure_future(run.client.chat(str(number), max_tokens=1))
            while not asked.done():
                health = await run.client.get("/health")
                assert health.seconds < 1.0 * suite.slack, payload
                await asyncio.sleep(0.01)
            answer = await asked
            assert answer.seconds < 2 * suite.slack, payload
            assert answer.status == 400, (payload, answer.body[:300])
            assert answer.error["code"] == "chat_template_error"
            assert b"the secret" not in answer.body


PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@covers("SEC-06")
async def test_pages_of_other_origins_stay_out(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        *preflights, simple = await run.table()
        for answer in preflights:
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert answer.status in (204, 403, 405)
        assert simple.status == 403
        assert "Access-Control-Allow-Origin" not in simple.headers
        run.client.complaints.clear()
    good = "http://good.example"
    async with suite.on(tiny, allowed_origins=good) as run:
        for origin, is_allowed in (
            (good, True), ("http://good.example.evil.example", False), ("http://evilgood.example", False),
            ("https://good.example", False), ("http://good.example:81", False), ("null", False),
            ("http://xgood-example", False),
        ):  # fmt: skip
            answer = await run.client.get("/v1/completions", {"Origin": origin, **PREFLIGHT}, "OPTIONS")
            told = answer.headers.get("Access-Control-Allow-Origin")
            assert told == (good if is_allowed else None), origin
            assert told != "*" or "Access-Control-Allow-Credentials" not in answer.headers
        run.client.complaints.clear()
    wide = await asyncio.to_thread(Server, tiny, ["--host", "0.0.0.0", "--num-kv-blocks", "64"], suite.pool.log_file())
    try:
        assert "server.exposed" in wide.log()
    finally:
        wide.stop()


@covers("SEC-04")
async def test_a_template_in_gguf_metadata_is_caged_too(suite: Suite, tmp_path: Path) -> None:
    vocab, merges, added = vocabulary()
    texts = sorted({**vocab, **{text: id for text, (id, _) in added.items()}}.items(), key=lambda pair: pair[1])
    prompt = ChatPrompt(messages=({"role": "user", "content": "x"},))
    for number, request in enumerate(suite.case.requests):
        path = tmp_path / f"bomb-{number}.gguf"
        writer = GGUFWriter(str(path), "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([text for text, _ in texts])
        writer.add_token_types([3 if text in added else 1 for text, _ in texts])
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_eos_token_id(2)
        writer.add_chat_template(request["json"]["chat_template"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        template = load_chat_template(path)
        assert template is not None
        started = time.monotonic()
        with pytest.raises(RequestError) as refused:
            template.render(prompt, wall_s=0.0)
        assert refused.value.failure.status == 400
        assert time.monotonic() - started < 2 * suite.slack
