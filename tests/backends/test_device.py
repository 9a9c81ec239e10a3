"""Devices by name and as they are."""

import platform

import pytest

from asyncpage.backends.device import device_named, present_device
from asyncpage.errors import UsageError


@pytest.mark.parametrize(
    ("word", "kind", "arch"),
    [
        ("sm90", "cuda", "sm90"),
        ("SM_100a", "cuda", "sm100a"),
        ("gfx942", "rocm", "gfx942"),
        ("gfx90a", "rocm", "gfx90a"),
        ("aarch64", "cpu", "aarch64"),
        ("cpu", "cpu", platform.machine()),
    ],
)
def test_a_word_names_a_device(word, kind, arch):
    device = device_named(word)
    assert (device.kind, device.arch) == (kind, arch)


def test_another_word_is_refused():
    with pytest.raises(UsageError, match="no such device: 'tpu'"):
        device_named("tpu")


def test_the_processor_is_always_present():
    device = present_device("cpu")
    assert (device.kind, device.arch, device.torch_device) == ("cpu", platform.machine(), "cpu")
    assert device.memory_bytes > 1 << 28
