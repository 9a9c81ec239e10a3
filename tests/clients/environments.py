"""Environments of the clients' own: Python's in a venv, JavaScript's in a folder, made once into the cache folder.

INVARIANT: an environment is used only when its mark says that everything was installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncpage import store

DRIVERS = Path(__file__).with_name("drivers")
INSTALL_TIMEOUT_S = 3600.0  # some bring gigabytes: 700 s on a machine that did other things too


def python_with(*packages: str) -> Path:
    """The interpreter of an environment that has these packages."""

    def make(folder: Path) -> None:
        # Not built under another name and moved: an environment's scripts hold its path.
        _install([sys.executable, "-m", "venv", str(folder)], folder.parent)
        _install([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages], folder.parent)

    return _environment("python", packages, make) / "bin/python"


def node_with(*packages: str) -> Path:
    """A folder whose `node_modules` has these packages."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        _install(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages], folder)

    return _environment("node", packages, make)


def run_python(python: Path, driver: str, **given: object) -> Any:
    """What `drivers/<driver>` prints as JSON, given a JSON object on its standard input."""
    return _run([str(python), str(DRIVERS / driver)], given, {})


def run_node(folder: Path, driver: str, **given: object) -> Any:
    """The same for a module that Node runs; it finds its packages beside itself."""
    copy = folder / f"{os.getpid()}-{driver}"
    shutil.copyfile(DRIVERS / driver, copy)
    try:
        return _run(["node", str(copy)], given, {})
    finally:
        copy.unlink()


def _run(command: Sequence[str], given: Mapping[str, object], more: Mapping[str, str]) -> Any:
    # A client must find nothing of this machine's: no key, no proxy, no settings, no hub.
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    home = store.cache_dir() / "test-clients" / "home"
    home.mkdir(parents=True, exist_ok=True)
    environment = {**keep, "HOME": str(home), "NO_COLOR": "1", **more}
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=600, env=environment, cwd=home
    )
    assert done.returncode == 0, f"{command[-1]} failed\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def _install(command: Sequence[str], folder: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, cwd=folder, env=clean, stdout=subprocess.DEVNULL)


def _environment(kind: str, packages: Sequence[str], make: Callable[[Path], None]) -> Path:
    name = hashlib.sha256("\n".join((kind, sys.version, *packages)).encode()).hexdigest()[:16]
    folder = store.cache_dir() / "test-clients" / f"{kind}-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = folder.with_suffix(".complete")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            mark.touch()
    return folder
