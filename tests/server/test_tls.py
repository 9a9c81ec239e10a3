"""Listening with TLS, and what is said of files that cannot be used."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from asyncpage.cli.preflight import check_address
from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig
from asyncpage.server.http_server import HttpServer


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """A certificate for this machine that vouches for itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    subprocess.run([*words.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return str(certificate), str(key)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "own")


async def test_answers_and_streams_come_over_tls_and_plain_http_gets_none(engine, files) -> None:
    server = HttpServer(engine, ServerConfig(port=0, ssl_certfile=files[0], ssl_keyfile=files[1]))
    await server.start()
    try:
        assert server.url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=files[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(server.url + "/health", ssl=trust) as answer:
                assert answer.status == 200
            body = {"prompt": "hello", "stream": True}
            async with session.post(server.url + "/v1/completions", json=body, ssl=trust) as answer:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(server.url.replace("https", "http") + "/health")
            old = ssl.create_default_context(cafile=files[0])
            old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            with pytest.deprecated_call():
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(server.url + "/health", ssl=old)
    finally:
        await server.stop()


def test_a_key_may_be_in_the_file_of_its_certificate(files, tmp_path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(files[1]).read_text() + Path(files[0]).read_text())
    check_address(ServerConfig(port=0, ssl_certfile=str(both)))


def refusal(**settings: str | None) -> str:
    with pytest.raises(UsageError) as caught:
        check_address(ServerConfig(port=0, **settings))
    return str(caught.value)


def test_files_that_cannot_be_used_are_named_before_anything_is_loaded(files, tmp_path) -> None:
    certificate, key = files
    _, strange = make_certificate(tmp_path, "strange")
    text = tmp_path / "notes.txt"
    text.write_text("not a certificate")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", str(locked)],
        check=True,
        capture_output=True,
    )
    assert "--ssl-certfile /nowhere.pem cannot be read" in refusal(ssl_certfile="/nowhere.pem", ssl_keyfile=key)
    assert "--ssl-keyfile /nowhere.key cannot be read" in refusal(ssl_certfile=certificate, ssl_keyfile="/nowhere.key")
    assert "is not that of the certificate" in refusal(ssl_certfile=certificate, ssl_keyfile=strange)
    assert "PEM" in refusal(ssl_certfile=str(text), ssl_keyfile=key)
    assert "PEM" in refusal(ssl_certfile=certificate, ssl_keyfile=str(text))
    assert "PEM" in refusal(ssl_certfile=certificate)
    assert "is encrypted" in refusal(ssl_certfile=certificate, ssl_keyfile=str(locked))


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"ssl_keyfile": "k"}, "--ssl-certfile"), ({"ssl_certfile": "c", "uds": "s"}, "--uds")],
)
def test_settings_that_contradict_one_another_are_refused(settings: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        ServerConfig(**settings).check()
