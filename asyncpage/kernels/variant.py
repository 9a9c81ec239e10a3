"""Which native code this machine's processor can run.

`native` asks it before anything is compiled or loaded.

INVARIANT: a variant is chosen by what the running processor says of itself, never by the machine that compiled it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Processor:
    """`machine`: the architecture in the kernel's words. `features`: as it lists them, none where it does not."""

    machine: str
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class Variant:
    """Native code for processors of an architecture that have these `features`, compiled with `flags`."""

    name: str
    machines: frozenset[str]
    features: frozenset[str]
    flags: tuple[str, ...]

    def suits(self, processor: Processor) -> bool:
        return processor.machine in self.machines and self.features <= processor.features


VARIANTS = (
    Variant(
        "avx2",
        frozenset({"x86_64", "AMD64"}),
        frozenset({"avx2", "fma", "f16c"}),
        ("-mavx2", "-mfma", "-mf16c"),
    ),
)
"""The best first."""


def read_processor(root: Path = Path("/")) -> Processor:
    """This machine's."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    found = next((value.split() for key, _, value in lines if key.strip() in ("flags", "Features")), [])
    return Processor(platform.machine(), frozenset(found))


def choose_variant(processor: Processor) -> Variant | None:
    """None where no native code runs."""
    return next((variant for variant in VARIANTS if variant.suits(processor)), None)
