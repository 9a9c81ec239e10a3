"""How the HTTP server listens and what it lets in: its settings, declared as the engine's are (`asyncpage.config`).

The command line reads them and passes them by value.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from asyncpage.config import refuse, setting


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the HTTP server listens and what it lets in."""

    host: str = setting("127.0.0.1", "address to listen on; loopback unless you open it")
    port: int = setting(8000, "TCP port; 0 takes a free one and prints it")
    uds: str | None = setting(None, "a Unix socket path, instead of host and port")
    root_path: str = setting(
        "", "a path such as /llm under which a proxy shows the server: it answers there too, with and without it"
    )
    api_key: tuple[str, ...] = setting((), "keys that open the API; repeat for several")
    ssl_certfile: str | None = setting(None, "a PEM file with the server's certificate chain: HTTPS instead of HTTP")
    ssl_keyfile: str | None = setting(None, "a PEM file with the certificate's key, where it is not in --ssl-certfile")
    allowed_hosts: tuple[str, ...] = setting((), "Host headers to accept beside the listening address and localhost")
    allowed_origins: tuple[str, ...] = setting((), "web origins that may call the API (CORS); none by default")
    max_body_bytes: int = setting(32 * 1024 * 1024, "largest request body", unit="bytes")
    max_prompts: int = setting(256, "most prompts times choices in one request", unit="choices")
    max_buffered_bytes: int = setting(
        192 * 1024, "unsent bytes one stream may pile up before a client that does not read is cut", unit="bytes"
    )
    request_timeout_s: float | None = setting(None, "deadline of a request that sets none", unit="seconds")
    keep_alive_s: float = setting(15.0, "silence after which a stream gets a comment line", unit="seconds")
    drain_timeout_s: float = setting(30.0, "how long SIGTERM waits for running requests", unit="seconds")
    chart_tokens: str = setting(
        "auto",
        "whether the chart room tells which tokens a block holds, which shows whoever has a key what others asked; "
        "auto: where there is one key, or none and only this machine can ask",
        choices=("auto", "always", "never"),
    )
    index_comparison: str | None = setting(
        None, "what 'asyncpage simulate --compare-index --json' printed, in a file, for the chart room to show"
    )
    enable_auto_tool_choice: bool = setting(
        True, "let models choose by themselves to call tools; without it a request must say required, none or a name"
    )
    log_level: str = setting("info", "least severe log line shown", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("console", "log lines for people or machines", choices=("console", "json"))
    log_requests: bool = setting(True, "one log line for every finished request")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shows_tokens(self) -> bool:
        """Whether the chart may tell what blocks hold: nobody's prompt is another's to read, unless that is wanted."""
        if self.chart_tokens != "auto":
            return self.chart_tokens == "always"
        return len(self.api_key) == 1 or (not self.api_key and self.is_local)

    def check(self) -> None:
        """Errors: `UsageError` naming the flags to change, all of them."""
        refuse(self.problems())

    def problems(self) -> Iterator[str]:
        """What is wrong, each with the flag to change."""
        if self.chart_tokens not in ("auto", "always", "never"):
            yield f"--chart-tokens must be one of auto, always, never; got {self.chart_tokens!r}"
        if not 0 <= self.port <= 65535:
            yield f"--port must be between 0 and 65535, got {self.port}"
        if self.root_path and not re.fullmatch(r"(/(?!\.\.?(?:/|\Z))[A-Za-z0-9._~-]+)+", self.root_path):
            yield f"--root-path must be a path such as /llm, without a slash at its end; got {self.root_path!r}"
        # Under these a path would be two things: /events/chart the page and its feed, /debug/why/health an id too.
        if f"{self.root_path}/".startswith(("/v1/", "/events/", "/debug/")):
            yield "--root-path must not begin with /v1, /events or /debug, which the API's own paths begin with"
        for name in ("max_body_bytes", "max_prompts", "max_buffered_bytes"):
            if getattr(self, name) < 1:
                yield f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}"
        for name in ("keep_alive_s", "request_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                yield f"--{name.replace('_', '-')} must be greater than 0"
        if self.drain_timeout_s < 0:
            yield "--drain-timeout-s must be 0 or more"
        if any(not key for key in self.api_key):
            yield "--api-key must not be empty"
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            yield "--ssl-keyfile is the key of a certificate; give that with --ssl-certfile"
        if self.ssl_certfile is not None and self.uds is not None:
            yield "--uds needs no TLS: only this user can reach it; leave --ssl-certfile out"
