"""Builds the package's C++ once a machine, with the system's compiler, and tells where the result is.

A wheel may bring libraries that were built before (`scripts/build_wheel`); then no compiler is needed. The executor
asks for it when it loads a model, `asyncpage doctor` looks only. Nothing is built when a module is imported. `CXX`
names the compiler, as for every build; without it the first of `COMPILERS` that is there.

INVARIANT: a library that `look` calls built is whole, byte for byte as it was written, and was made of the sources,
compiler and flags that its name is a digest of; two processes that need the same one compile it once; no compiler
outlives the process that started it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncpage.durable import lock, sync_folder
from asyncpage.kernels.variant import Variant, choose_variant, read_processor

SOURCES = Path(__file__).with_name("cpu")
PREBUILT = Path(__file__).with_name("prebuilt")
COMPILERS = ("c++", "g++", "clang++")
# No contraction and no "fast" arithmetic: a row's numbers must not depend on how a tile was compiled.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
BUILD_LIMIT_S = 180.0
_ASK_LIMIT_S = 20.0
_SEAL_BYTES = 32
_WORK_PREFIX = ".build-"

# A compiler is a tree of processes, which neither a signal to its root nor the parent-death signal ends whole. So it
# has a group of its own, and in it one who waits for the end of a pipe that the starting process holds open.
_TIED = """
exec 3<&0
{ read -r _ <&3; kill -s KILL 0; } >/dev/null 2>&1 &
"$@" </dev/null 3<&- &
wait $!
"""


@dataclass(frozen=True, slots=True)
class Native:
    """Where native code stands. `path`: of the library, which is there only when `state` is `built`.

    `none`: it cannot be had; `reason` says why, and for the other states what it is.
    """

    state: Literal["built", "unbuilt", "none"]
    reason: str
    path: Path | None = None
    variant: Variant | None = None


@dataclass(frozen=True, slots=True)
class _Recipe:
    variant: Variant
    compiler: tuple[str, ...]
    told: str  # the first line of what it says of itself
    path: Path


def look(
    folder: Path | None,
    *,
    environment: Mapping[str, str] = os.environ,
    sources: Path = SOURCES,
    variant: Variant | None = None,
) -> Native:
    """How native code stands, without building it. `folder`: where libraries are kept, None for nowhere.

    `variant`: one that suits this processor, None for the best.
    """
    if folder is not None and (ready := _prebuilt(sources, variant)) is not None:
        return ready
    found = _recipe(folder, environment, sources, variant)
    if isinstance(found, Native):
        return found
    if _is_there(found.path):
        return Native("built", f"{found.variant.name}, built with {found.told}", found.path, found.variant)
    reason = f"{found.variant.name}, to be built with {found.told} when a model is loaded"
    return Native("unbuilt", reason, found.path, found.variant)


def build(
    folder: Path | None,
    *,
    environment: Mapping[str, str] = os.environ,
    sources: Path = SOURCES,
    variant: Variant | None = None,
) -> Native:
    """The same, built first where it can be. Takes seconds the first time; nothing is left behind by a failure."""
    if folder is not None and (ready := _prebuilt(sources, variant)) is not None:
        return ready
    found = _recipe(folder, environment, sources, variant)
    if isinstance(found, Native):
        return found
    try:
        if not _is_there(found.path):
            found.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with lock(found.path.with_name("lock")):
                if not _is_there(found.path):
                    _compile(found, sources)
    except BuildFailed as error:
        return Native("none", f"{found.told} failed: {error}")
    except OSError as error:
        return Native("none", f"{found.path.parent} cannot be written: {error.strerror}")
    return look(folder, environment=environment, sources=sources, variant=variant)


def build_ahead(variant: Variant, compiler: Sequence[str], folder: Path = PREBUILT) -> None:
    """Build a library for a wheel to bring. Errors: `BuildFailed`; `OSError` where the folder cannot be written."""
    folder.mkdir(exist_ok=True)
    _compile(_Recipe(variant, tuple(compiler), "", folder / _prebuilt_name(SOURCES, variant)), SOURCES)


class BuildFailed(Exception):
    """The compiler did; one line that says how."""


def _prebuilt(sources: Path, variant: Variant | None) -> Native | None:
    """What the package brought of these very sources."""
    variant = variant or choose_variant(read_processor())
    if variant is None:
        return None
    path = PREBUILT / _prebuilt_name(sources, variant)
    return Native("built", f"{variant.name}, prebuilt in the package", path, variant) if _is_whole(path) else None


def _prebuilt_name(sources: Path, variant: Variant) -> str:
    return f"{variant.name}-{_digest(sources, *FLAGS, variant.name, *variant.flags)}.so"


def _recipe(
    folder: Path | None, environment: Mapping[str, str], sources: Path, variant: Variant | None
) -> _Recipe | Native:
    if folder is None:
        return Native("none", "there is no folder to build it in")
    processor = read_processor()
    variant = variant or choose_variant(processor)
    if variant is None:
        needed = "it needs AVX2, FMA and F16C, or NEON with dot products"
        return Native("none", f"there is none for this processor ({processor.machine}); {needed}")
    compiler = _compiler(environment)
    if compiler is None:
        named = environment.get("CXX")
        lacking = f"CXX names {named!r}, which is not there" if named else "there is no C++ compiler"
        return Native("none", f"{lacking}; install g++ or clang++")
    try:
        asked = subprocess.run([*compiler, "--version"], capture_output=True, timeout=_ASK_LIMIT_S, check=False)
        told = (asked.stdout.decode(errors="replace").splitlines() or [""])[0].strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Native("none", f"{compiler[0]} does not run: {error}")
    if asked.returncode != 0 or not told:
        return Native("none", f"{' '.join(compiler)} --version fails; install g++ or clang++, or name one in CXX")
    digest = _digest(sources, told, *compiler, *FLAGS, variant.name, *variant.flags)
    return _Recipe(variant, compiler, told, folder / f"{variant.name}-{digest}.so")


def _digest(sources: Path, *parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    for source in sorted(sources.iterdir()):
        if source.suffix in (".cpp", ".hpp"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _compiler(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The command's words, the first as a path; None where there is none."""
    named = environment.get("CXX", "").strip()
    for words in [shlex.split(named)] if named else [[name] for name in COMPILERS]:
        path = shutil.which(words[0], path=environment.get("PATH"))
        if path is not None:
            return path, *words[1:]
    return None


def _is_there(path: Path) -> bool:
    """Whether it is a whole library that only its owner, who is this user or root, may have written."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o022 and _is_whole(path)


def _is_whole(path: Path) -> bool:
    """A cut one would load, and end the process where its missing pages are touched."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return content[-_SEAL_BYTES:] == _seal(content[:-_SEAL_BYTES])


def _seal(library: bytes) -> bytes:
    """What follows a library in its file; loaders do not look there."""
    return hashlib.sha256(library).digest()


def _compile(recipe: _Recipe, sources: Path) -> None:
    """Under the lock, so that what builds have left behind that were killed is nobody's."""
    for left in recipe.path.parent.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=recipe.path.parent) as work:
        made = Path(work, recipe.path.name)
        units = [str(source) for source in sorted(sources.glob("*.cpp"))]
        _run((*recipe.compiler, *FLAGS, *recipe.variant.flags, *units, "-o", str(made)), work)
        library = made.read_bytes()
        with open(made, "wb") as file:
            file.write(library + _seal(library))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, 0o700)
        os.replace(made, recipe.path)
    sync_folder(recipe.path.parent)


def _run(command: Sequence[str], work: str) -> None:
    """Errors: `BuildFailed`. Whatever the command starts ends with this call, and with this process."""
    end, held = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _TIED, "sh", *command],
            stdin=end,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": work},
            start_new_session=True,
        )
    except OSError as error:
        os.close(held)
        raise BuildFailed(f"it cannot be started: {error.strerror}") from error
    finally:
        os.close(end)
    with process:
        try:
            said = process.communicate(timeout=BUILD_LIMIT_S)[1]
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"it took more than {BUILD_LIMIT_S:g} s") from None
        finally:
            os.close(held)
    if process.returncode != 0:
        lines = said.decode(errors="replace").splitlines()
        raise BuildFailed(next((line for line in lines if "error" in line), (lines or ["it said nothing"])[-1]).strip())
