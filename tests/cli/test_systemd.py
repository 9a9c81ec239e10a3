"""States reach the service manager's socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from asyncpage.cli.systemd import ServiceManager


def test_states_arrive_as_datagrams(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        told = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        told.tell("READY=1")
        told.tell("STOPPING=1")
        assert [manager.recv(99), manager.recv(99)] == [b"READY=1", b"STOPPING=1"]


def test_an_abstract_address_is_understood() -> None:
    name = f"asyncpage-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        ServiceManager({"NOTIFY_SOCKET": "@" + name}).tell("READY=1")
        assert manager.recv(99) == b"READY=1"


def test_without_a_manager_nothing_is_sent() -> None:
    ServiceManager({}).tell("READY=1")


def test_a_manager_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
