"""The far end of a link as an argument."""

from __future__ import annotations

import os

import pytest

from asyncpage.errors import ProtocolError
from asyncpage.pipes.descriptors import LinkDescriptors


def test_an_argument_becomes_the_same_descriptors_again() -> None:
    sent = LinkDescriptors("ring", (5, 6, 7, 8, 9), 1234, 3)
    got = LinkDescriptors.from_argument(sent.to_argument())
    assert (got.kind, got.fds, got.owner_pid, got.epoch) == ("ring", (5, 6, 7, 8, 9), 1234, 3)


@pytest.mark.parametrize(
    "argument",
    ["", "ring", "ring:1,2,3,4,5:9", "ring:1,2,x,4,5:9:0", "ring:1,2:9:0", "socket:1:9:0", "pipe:1,2:9:0", "ring::9:0"],
)
def test_an_argument_that_is_no_link_is_refused(argument: str) -> None:
    with pytest.raises(ProtocolError, match="link descriptors"):
        LinkDescriptors.from_argument(argument)


def test_closing_twice_does_not_close_what_came_after() -> None:
    reader, writer = os.pipe()
    descriptors = LinkDescriptors("socket", (reader, writer), 1, 0)
    descriptors.close()
    again = os.pipe()
    assert set(again) == {reader, writer}
    descriptors.close()
    for fd in again:
        os.fstat(fd)
        os.close(fd)
