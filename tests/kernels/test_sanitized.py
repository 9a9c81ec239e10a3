"""The native code under the sanitizers of addresses and of undefined behaviour, on memory of exact sizes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asyncpage.kernels import native
from asyncpage.kernels.quantised import LAYOUTS
from asyncpage.kernels.variant import Variant

HERE = Path(__file__).parent
LAYERS = [native.SOURCES / name for name in ("attention.cpp", "stack.cpp", "linear.cpp")]


@pytest.mark.parametrize(
    "sources", [[HERE / "harness.cpp"], [HERE / "layers_harness.cpp", *LAYERS]], ids=["products", "layers"]
)
def test_it_touches_no_memory_but_its_own_and_relies_on_nothing_undefined(
    tmp_path: Path, variant: Variant, sources: list[Path]
) -> None:
    layouts = [f"{{{layout.columns},{layout.file_bytes}}}" for layout in LAYOUTS.values()]
    program = tmp_path / "harness"
    subprocess.run(
        ["c++", "-std=c++17", "-O1", "-g1", "-pthread", "-Wno-psabi", *variant.flags, "-I", str(native.SOURCES),
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-DHARNESS_LAYOUTS={','.join(layouts)}",
         *map(str, sources), "-o", str(program)],
        check=True,
    )  # fmt: skip
    # Helper threads and what they hold live as long as the process.
    ran = subprocess.run([program], env={"ASAN_OPTIONS": "detect_leaks=0"}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
