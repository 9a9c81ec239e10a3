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
    """Native code for processors of an architecture that have these `features`, compiled with `flags`.

    `lanes`: numbers in a vector, which is how many rows of a table lie together.
    """

    name: str
    lanes: int
    machines: frozenset[str]
    features: frozenset[str]
    flags: tuple[str, ...]

    def suits(self, processor: Processor) -> bool:
        return processor.machine in self.machines and self.features <= processor.features


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni")
_X86, _ARM = frozenset({"x86_64", "AMD64"}), frozenset({"aarch64", "arm64"})

VARIANTS = (
    # The kernel says avx512_vnni, the compiler avx512vnni.
    Variant(
        "avx512vnni",
        16,
        _X86,
        frozenset((*_AVX2, *_AVX512[:-1], "avx512_vnni")),
        tuple(f"-m{name}" for name in (*_AVX2, *_AVX512)),
    ),
    Variant("avx2", 8, _X86, frozenset(_AVX2), tuple(f"-m{name}" for name in _AVX2)),
    Variant(
        "neon",
        4,
        _ARM,
        frozenset({"asimd", "atomics", "fphp", "asimdhp", "asimddp"}),  # all that these flags let a compiler use
        ("-march=armv8.2-a+dotprod+fp16",),
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


def suitable_variants(processor: Processor) -> tuple[Variant, ...]:
    """All that it runs, the best first."""
    return tuple(variant for variant in VARIANTS if variant.suits(processor))


def choose_variant(processor: Processor) -> Variant | None:
    """None where no native code runs."""
    return next(iter(suitable_variants(processor)), None)


def lanes_here() -> int:
    """Of the variant that this machine gets; 1, for who only counts bytes, where it gets none."""
    variant = choose_variant(read_processor())
    return 1 if variant is None else variant.lanes
