"""Tells a service manager how far we are, by the datagram protocol of sd_notify(3).

`serve` tells when it is ready and when it stops; without NOTIFY_SOCKET nobody listens and nothing is sent.
"""

from __future__ import annotations

import socket

from asyncpage.cli.command import Environment


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self, environment: Environment) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for Linux's abstract namespace, whose names begin with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def tell(self, state: str) -> None:
        """Send one state, such as READY=1. Errors: `OSError` when the manager's socket does not take it."""
        if self._address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(state.encode(), self._address)
