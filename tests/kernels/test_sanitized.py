"""The native code under the sanitizers of addresses and of undefined behaviour, on memory of exact sizes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gguf

from asyncpage.kernels import native
from asyncpage.kernels.quantised import BLOCK_BYTES
from asyncpage.kernels.variant import choose_variant, read_processor

HARNESS = Path(__file__).with_name("harness.cpp")


def test_it_touches_no_memory_but_its_own_and_relies_on_nothing_undefined(tmp_path: Path) -> None:
    variant = choose_variant(read_processor())
    assert variant is not None
    sizes = []
    for kind in BLOCK_BYTES:
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        sizes.append(str(size * 32 // elements))
    program = tmp_path / "harness"
    subprocess.run(
        ["c++", "-std=c++17", "-O1", "-g1", "-pthread", *variant.flags, "-I", str(native.SOURCES),
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-DHARNESS_SIZES={','.join(sizes)}",
         str(HARNESS), "-o", str(program)],
        check=True,
    )  # fmt: skip
    # Helper threads and what they hold live as long as the process.
    ran = subprocess.run([program], env={"ASAN_OPTIONS": "detect_leaks=0"}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
