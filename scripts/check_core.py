"""Installs the base package into a fresh environment and checks what the core install promises.

No native module is built with Rust, torch does not come along, everything but numpy stays below 40 MB, and
`asyncpage serve` says what to type. Run by CI: python3 scripts/check_core.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 40_000_000
NOT_COUNTED = ("numpy", "pip", "setuptools", "_distutils_hack", "pkg_resources")

# What the compiler and its standard library leave in a binary. Stripped binaries may show nothing, which is why the
# wheel's generator and its bill of materials are read too.
TRACES = (b"/rustc/", b"rustc version", b"cargo/registry", b"rust_eh_personality", b"rust_begin_unwind", b"rust_panic")
GENERATORS = ("maturin", "setuptools-rust", "setuptools_rust")


def rust_in(site_packages: Path) -> Iterator[str]:
    """One line for each file under `site_packages` that shows that a package was built with Rust."""
    for file in sorted(site_packages.rglob("*")):
        name = file.relative_to(site_packages)
        if file.suffix in (".so", ".pyd", ".dylib"):
            data = file.read_bytes()
            yield from (f"{name}: holds {trace.decode()!r}" for trace in TRACES if trace in data)
        elif file.name == "WHEEL" and file.parent.suffix == ".dist-info":
            for line in file.read_text(encoding="utf-8").splitlines():
                if line.startswith("Generator:") and any(word in line for word in GENERATORS):
                    yield f"{name}: {line}"
        elif file.parent.name == "sboms" and file.is_file() and b"pkg:cargo/" in file.read_bytes():
            yield f"{name}: lists Rust crates"


def complaints(python: Path, site_packages: Path) -> Iterator[str]:
    """What the fresh environment breaks of the promises above."""
    yield from rust_in(site_packages)
    if (site_packages / "torch").exists():
        yield "torch was installed without being asked for"
    size = sum(
        file.stat().st_size
        for folder in site_packages.iterdir()
        if not folder.name.startswith(NOT_COUNTED)
        for file in (folder.rglob("*") if folder.is_dir() else (folder,))
        if file.is_file() and "__pycache__" not in file.parts
    )
    print(f"core install without numpy: {size / 1e6:.1f} MB")
    if size >= MOST_BYTES:
        yield f"the core install without numpy takes {size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f} are allowed"
    # Isolated, so that the package is the installed one and not this folder.
    serve = subprocess.run([python, "-I", "-m", "asyncpage", "serve"], capture_output=True, text=True, check=False)
    if serve.returncode != 2 or "pip install 'asyncpage[torch]'" not in serve.stderr:
        yield f"'asyncpage serve' without torch ended with {serve.returncode} and said: {serve.stderr.strip()}"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", ROOT], check=True
        )
        site_packages = next(Path(folder, "lib").glob("python*/site-packages"))
        found = list(complaints(python, site_packages))
    for line in found:
        print(f"core install: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
