"""What every answer has in common, and who gets one: ids, error shape, Host, Origin, keys, CORS."""

import asyncio
import json
import re

import pytest
from structlog.testing import capture_logs

from asyncpage.server.generate import route as generate_route

KEY = "sekret-1"
COMPLETION = json.dumps({"prompt": "a", "max_tokens": 1})


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def get(path: str = "/health", *lines: str, method: str = "GET", host: str | None = "localhost") -> str:
    head = [f"{method} {path} HTTP/1.1", "Connection: close", *lines]
    if host is not None:
        head.append(f"Host: {host}")
    return "\r\n".join(head) + "\r\n\r\n"


def routes(site) -> list[tuple[str, str]]:
    """Every method and path of the server's own router, so that a new route cannot be forgotten."""
    found = []
    for route in site.server._runner.app.router.routes():
        path = route.resource.canonical.replace("{name}", "echo")
        found.append((route.method, path))
    return found


# --- shape -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_path_is_a_404_in_the_error_shape(site) -> None:
    for method in ("GET", "POST", "DELETE"):
        async with site.session.request(method, site.url + "/v1/nothing") as answer:
            assert answer.status == 404
            error = (await answer.json())["error"]
        assert (error["type"], error["code"], error["param"]) == ("not_found_error", "not_found", None)
        assert "/v1/nothing" in error["message"]


async def test_a_wrong_method_is_a_405_that_says_which_are_right(site) -> None:
    async with site.session.get(site.url + "/v1/completions") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await answer.json())["error"]["code"] == "method_not_allowed"
    async with site.session.post(site.url + "/health") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "nonsense"])
async def test_a_body_is_json_whatever_its_content_type_says(site, content_type: str) -> None:
    status, _ = await site.post("/v1/completions", {"prompt": "a"}, **{"Content-Type": content_type})
    assert status == 200


async def test_compressed_bodies_are_refused_unread(site) -> None:
    for encoding, status in (("gzip", 415), ("deflate", 415), ("br", 415), ("identity", 200)):
        raw = COMPLETION.encode()
        lines = [f"Content-Length: {len(raw)}", f"Content-Encoding: {encoding}"]
        answer = await site.raw(get("/v1/completions", *lines, method="POST").encode() + raw)
        assert status_of(answer) == status


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_that_is_too_large_is_a_413_that_names_the_limit(serve, is_announced: bool) -> None:
    site = await serve(max_body_bytes=1000)

    async def pieces():
        for _ in range(20):
            yield b" " * 100

    data = b" " * 2000 if is_announced else pieces()
    async with site.session.post(site.url + "/v1/completions", data=data) as answer:
        assert answer.status == 413
        error = (await answer.json())["error"]
    assert error["code"] == "request_too_large"
    assert "1000" in error["message"]


async def test_a_fault_of_ours_is_a_500_without_its_insides(site, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("inner detail")

    monkeypatch.setattr(site.engine, "submit", broken)
    with capture_logs() as lines:
        status, body = await site.post("/v1/completions", {"prompt": "a"})
    assert (status, body["error"]["type"], body["error"]["code"]) == (500, "server_error", "internal_error")
    assert "inner detail" not in json.dumps(body)
    (line,) = [line for line in lines if line["event"] == "request.failed"]
    assert line["exc_info"]


@pytest.mark.parametrize(
    ("offered", "is_kept"),
    [("bench-7:x/y", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("é", False), ("", False)],
)
async def test_a_sane_request_id_is_taken_and_any_other_replaced(site, offered: str, is_kept: bool) -> None:
    for path in ("/health", "/nothing"):
        answer = await site.get(path, **{"X-Request-Id": offered})
        found = answer.headers["X-Request-Id"]
        assert found == offered if is_kept else re.fullmatch("req-[0-9a-f]{32}", found)


@pytest.mark.parametrize("path", ["/v1/completions", "/nothing"])
async def test_an_expectation_that_cannot_be_met_is_refused_with_an_id_and_no_fault_of_ours(site, path: str) -> None:
    with capture_logs() as lines:
        answer = await site.raw(get(path, "Expect: 200-ok", method="POST"))
    assert status_of(answer) == 417
    assert re.search(rb"X-Request-Id: req-[0-9a-f]{32}\r\n", answer)
    assert not lines


async def test_head_answers_where_get_does_and_without_a_body(site) -> None:
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/", "/version"):
        answer = await site.get(path, method="HEAD")
        assert answer.status == 200
        assert answer.text == ""


# --- host ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9999", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("box.lan", 200),
        ("box.lan:8443", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("evil.example:localhost", 403),
        ("localhost@evil.example", 403),
        ("", 403),
        (None, 400),
    ],
)
async def test_only_names_of_this_server_are_answered(serve, host: str | None, status: int) -> None:
    site = await serve(allowed_hosts=("box.lan",))
    answer = await site.raw(get("/health", host=host))
    assert status_of(answer) == status
    if host is not None:
        assert status_of(await site.raw(get("/nothing", host=host))) == (404 if status == 200 else status)


async def test_two_hosts_are_none(site) -> None:
    assert status_of(await site.raw(get("/health", "Host: localhost"))) == 400


async def test_a_wildcard_address_goes_by_the_number_that_was_dialled(serve) -> None:
    site = await serve(host="0.0.0.0")
    for host, status in (("127.0.0.1:80", 200), ("localhost", 200), ("10.9.8.7", 403), ("evil.example", 403)):
        assert status_of(await site.raw(get("/health", host=host))) == status


# --- origin and CORS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:8000", 200),
        ("https://localhost:8000", 200),
        ("https://app.example", 200),
        ("https://app.example:444", 403),
        ("http://localhost", 403),
        ("http://evil.example", 403),
        ("https://app.example.evil.example", 403),
        ("http://evil.example/localhost:8000", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
async def test_pages_of_other_sites_cannot_post(serve, origin: str | None, status: int) -> None:
    site = await serve(allowed_origins=("https://app.example",))
    lines = [f"Content-Length: {len(COMPLETION)}", "Content-Type: text/plain"]
    if origin is not None:
        lines.append(f"Origin: {origin}")
    answer = await site.raw(get("/v1/completions", *lines, method="POST", host="localhost:8000") + COMPLETION)
    assert status_of(answer) == status
    is_readable = f"Access-Control-Allow-Origin: {origin}\r\n".encode() in answer
    assert is_readable == (origin == "https://app.example")
    assert b"Access-Control-Allow-Origin: *" not in answer


async def test_an_allowed_origin_may_read_answers_errors_and_streams(serve) -> None:
    site = await serve(allowed_origins=("https://app.example",))
    for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {}):
        headers = {"Origin": "https://app.example"}
        async with site.session.post(site.url + "/v1/completions", json=body, headers=headers) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"]
            assert answer.headers["Vary"] == "Origin"


async def test_preflights_of_allowed_origins_are_answered_before_the_key_is_asked(serve) -> None:
    site = await serve(allowed_origins=("https://app.example",), api_key=(KEY,))
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    answer = await site.get("/v1/completions", "OPTIONS", Origin="https://app.example", **asked)
    assert answer.status == 204
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert answer.headers["Access-Control-Allow-Headers"] == wanted
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert int(answer.headers["Access-Control-Max-Age"]) > 0
    for origin in ("http://evil.example", "null", "https://app.example.evil.example", "http://localhost"):
        answer = await site.get("/v1/completions", "OPTIONS", Origin=origin, **asked)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_every_route_but_the_public_ones_wants_a_key(serve) -> None:
    site = await serve(api_key=(KEY, "second"))
    public = {("GET", "/health"), ("HEAD", "/health")}
    public |= {
        (method, path)
        for method, path in routes(site)
        if path in ("/", "/chart") or path.startswith(("/page/", "/docs"))
    }
    assert len(public) >= 10
    for method, path in [*routes(site), ("GET", "/nothing"), ("OPTIONS", "/v1/models"), ("POST", "/health")]:
        answer = await site.get(path, method)
        assert (answer.status == 401) == ((method, path) not in public), (method, path)
        authorized = await site.get(path, method, Authorization=f"Bearer {KEY}")
        assert authorized.status != 401, (method, path)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], 401),
        (["Authorization: Bearer wrong"], 401),
        ([f"Authorization: Basic {KEY}"], 401),
        (["Authorization: Bearer "], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer kéy"], 401),
        (["X-Api-Key: wrong"], 401),
        ([f"Authorization: Bearer {KEY}", "Authorization: Bearer other"], 401),
        ([f"Authorization: Bearer {KEY}x"], 401),
        ([f"Authorization: Bearer {KEY[:-1]}"], 401),
        ([f"Authorization: Bearer {KEY}"], 200),
        ([f"Authorization: bEARER   {KEY}"], 200),
        (["Authorization: Bearer second"], 200),
        ([f"X-Api-Key: {KEY}"], 200),
        (["Authorization: Bearer ", f"X-Api-Key: {KEY}"], 200),
    ],
)
async def test_a_key_opens_by_either_header(serve, lines: list[str], status: int) -> None:
    site = await serve(api_key=(KEY, "second"))
    answer = await site.raw(get("/v1/models", *lines))
    assert status_of(answer) == status
    if status == 401:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "authentication_error"


async def test_an_empty_bearer_is_ignored_where_no_key_is_asked(site) -> None:
    assert status_of(await site.raw(get("/v1/models", "Authorization: Bearer "))) == 200


async def test_a_key_is_never_logged(serve) -> None:
    with capture_logs() as lines:
        site = await serve(api_key=(KEY,))
        await site.post("/v1/completions", {"prompt": "a"}, Authorization=f"Bearer {KEY}")
        await site.post("/v1/completions", {"prompt": "a"}, Authorization=f"Bearer {KEY}x")
    assert "request.finished" in str(lines)
    assert KEY not in str(lines)


async def test_an_upload_that_trickles_is_given_up(site, monkeypatch) -> None:
    monkeypatch.setattr("asyncpage.server.json_body.UPLOAD_TIMEOUT_S", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write((get("/v1/completions", "Content-Length: 100", method="POST") + '{"prompt"').encode())
    assert status_of(await reader.readuntil(b"\r\n")) == 408
    writer.close()


def test_the_status_of_a_client_that_left_is_for_logs_only() -> None:
    assert generate_route.CLIENT_GONE == 499


async def test_a_refused_request_that_announced_no_body_is_the_last_of_its_connection(site) -> None:
    """Its client may send one all the same, and that must not be read as another request."""
    answer = await site.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 400
    assert b"Connection: close" in answer


async def test_a_version_that_nobody_speaks_is_refused(site) -> None:
    answer = await site.raw(b"GET /health\r\nHost: localhost\r\n\r\n")  # a parser may take it for HTTP/0.9
    assert b"400" in answer.split(b"\r\n")[0]
