"""A wheel that brings native code: who installs it needs no compiler, and gets what this processor runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from asyncpage.kernels.variant import VARIANTS, read_processor

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "build_wheel"

ASK = """
import ctypes
import sys
from pathlib import Path
from asyncpage.kernels import native, variant
from asyncpage.kernels.quantised import QuantisedProducts
for one in variant.suitable_variants(variant.read_processor()):
    found = native.build(Path(sys.argv[1]), variant=one)
    QuantisedProducts(ctypes.CDLL(str(found.path)), 1)
    print(found.state, found.reason, found.path.parent.name)
"""


def build(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_a_wheel_brings_what_its_architectures_processors_run_and_no_compiler_is_asked(tmp_path: Path) -> None:
    made = build("--out", str(tmp_path / "dist"))
    assert made.returncode == 0, made.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert made.stdout == f"{wheel}\n"
    machine = read_processor().machine
    assert wheel.name.endswith(f"-py3-none-linux_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        brought = [Path(name).name for name in archive.namelist() if "/prebuilt/" in name]
        archive.extractall(tmp_path / "site")
    variants = [variant for variant in VARIANTS if machine in variant.machines]
    assert sorted(name.split("-")[0] for name in brought) == sorted(variant.name for variant in variants)
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path / "cache")],
        env={"PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    here = [variant.name for variant in variants if variant.suits(read_processor())]
    told = [f"built {name}, prebuilt in the package prebuilt" for name in here]
    assert (asked.stdout.splitlines(), asked.stderr) == (told, "")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        (("--machine", "pdp11"), {}, "there is no native code for pdp11; there is for AMD64, aarch64, arm64, x86_64"),
        ((), {"CXX": "no-such-compiler"}, "there is no compiler no-such-compiler; install g++ or clang++, or name one"),
        ((), {"CXX": "false"}, "avx" if "x86" in read_processor().machine else "neon"),
    ],
)
def test_what_keeps_a_wheel_from_being_built_is_one_line(
    options: tuple[str, ...], environment: dict[str, str], why: str, tmp_path: Path
) -> None:
    made = build("--out", str(tmp_path / "dist"), *options, **environment)
    assert made.returncode == 2
    assert made.stderr.startswith(f"build_wheel: {why}")
    assert made.stderr.count("\n") == 1
    assert not (tmp_path / "dist").exists()
