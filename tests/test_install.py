"""What an installation needs and what it does not: light imports, no Rust in the core, a torch-free near side."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "asyncpage"

BLOCKED = (
    "torch",
    "triton",
    "pydantic",
    "tokenizers",
    "transformers",
    "safetensors",
    "orjson",
    "huggingface_hub",
    "httpx2",
)
TORCH_SIDE = ("executor", "models", "weights", "kernels")
# The backends that compute; their contract, devices and registry are read without torch.
TORCH_MODULES = (
    "backends.cpu", "backends.cpu_cache", "backends.cpu_plan", "backends.memory", "backends.native",
    "backends.reference", "testing.attention",
)  # fmt: skip

IMPORT_ALL = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
failed = []
for name in {names}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        failed.append(f"{{name}}: {{error}}")
print("\\n".join(failed))
"""


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def near_side() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        is_far = name.startswith(TORCH_SIDE) or any(name.startswith(far) for far in TORCH_MODULES)
        if not is_far and path.stem != "__main__":
            names.append("asyncpage" if name == "__init__" else f"asyncpage.{name}")
    return names


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, asyncpage; print([n for n in ('torch', 'aiohttp', 'structlog', 'numpy') if n in sys.modules])"
    assert run(code) == "[]"


def test_the_names_of_the_package_are_found_when_they_are_used() -> None:
    code = "import asyncpage; print(asyncpage.SamplingParams(n=2).n, asyncpage.EngineConfig().model)"
    assert run(code) == "2 demo"
    with pytest.raises(subprocess.CalledProcessError):
        run("import asyncpage; asyncpage.Scheduler")


def test_the_near_side_imports_without_torch_and_without_what_brings_rust() -> None:
    assert run(IMPORT_ALL.format(blocked=BLOCKED, names=near_side())) == ""


def test_the_wall_that_the_test_above_builds_would_be_felt() -> None:
    told = run(IMPORT_ALL.format(blocked=("regex", "msgpack"), names=["asyncpage.pipes.wire"]))
    assert told.startswith("asyncpage.pipes.wire: msgpack is blocked")


def test_rust_is_found_where_it_is() -> None:
    """The test extra brings packages known to be built with Rust, and the core has native ones that are not."""
    site_packages = Path(str(distribution("tokenizers").locate_file("")))
    rust_in = script("check_core").rust_in
    rusty = [name for name in ("tokenizers", "safetensors", "numpy", "msgpack") if [*rust_in(site_packages / name)]]
    assert rusty == ["tokenizers", "safetensors"]


def test_each_kind_of_trace_is_enough(tmp_path: Path) -> None:
    files = {
        "stripped/native.abi3.so": b"\x7fELF ... /rustc/9fc6b431/library/core/src/fmt/mod.rs ...",
        "made-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: maturin (1.9.4)\n",
        "listed-1.0.dist-info/sboms/listed.cyclonedx.json": b'{"purl": "pkg:cargo/serde@1.0"}',
        "innocent/native.so": b"\x7fELF ... built by gcc, encrusted ...",
        "innocent-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: setuptools (84.0)\n",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    told = [line.split(":")[0] for line in script("check_core").rust_in(tmp_path)]
    assert sorted(told) == sorted(name for name in files if not name.startswith("innocent"))


@pytest.mark.parametrize(
    ("inside", "allowed"),
    [
        ('<testcase classname="a" name="b"/>', True),
        ('<testcase classname="a" name="b"><skipped message="hardware: no GPU"/></testcase>', True),
        ('<testcase classname="a" name="b"><skipped message="later"/></testcase>', False),
        ('<testcase classname="a" name="b"><skipped type="pytest.xfail" message=""/></testcase>', False),
        ("", False),
    ],
)
def test_only_missing_hardware_excuses_a_skip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: str, allowed: bool
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{inside}</testsuite></testsuites>")
    assert (script("check_skips").unexcused(report) == []) is allowed
    assert ("skipped a.b" in capsys.readouterr().out) is ("<skipped" in inside)
