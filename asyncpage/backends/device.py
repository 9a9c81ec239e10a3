"""Devices as facts: read from a name (`sm90`), or from the machine.

The command line describes devices that are absent (`backends --explain --as sm90`); the executor describes its own.
"""

from __future__ import annotations

import os
import platform
import re

from asyncpage.backends.contract import DeviceInfo
from asyncpage.errors import UsageError


def device_named(name: str) -> DeviceInfo:
    """The device that a user's word means: cpu, x86_64, aarch64, sm80, sm90, gfx942, ...

    Errors: `UsageError` for any other word.
    """
    word = name.strip().lower()
    if word == "cpu":
        return DeviceInfo("cpu", platform.machine())
    if word in ("x86_64", "aarch64", "arm64"):
        return DeviceInfo("cpu", word)
    if re.fullmatch(r"sm_?\d{2,3}a?", word):
        return DeviceInfo("cuda", word.replace("_", ""))
    if re.fullmatch(r"gfx[0-9a-f]{3,5}", word):
        return DeviceInfo("rocm", word)
    raise UsageError(f"no such device: {name!r}; name a cpu, an NVIDIA architecture (sm90) or an AMD one (gfx942)")


def present_device(kind: str = "auto") -> DeviceInfo:
    """The device of this machine that `--device KIND` means: `auto` is an accelerator when there is one.

    Needs torch. Errors: `UsageError` when `cuda` is asked for and absent.
    """
    import torch  # here, so that naming devices needs no torch

    if kind != "cpu" and torch.cuda.is_available():
        facts = torch.cuda.get_device_properties(0)
        if torch.version.hip:
            arch = facts.gcnArchName.split(":")[0]
            return DeviceInfo("rocm", arch, 0, facts.name, facts.total_memory)
        return DeviceInfo("cuda", f"sm{facts.major}{facts.minor}", 0, facts.name, facts.total_memory)
    if kind == "cuda":
        raise UsageError("--device cuda: torch sees no CUDA or ROCm device here; use --device cpu")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceInfo("cpu", platform.machine(), 0, platform.processor(), memory)
