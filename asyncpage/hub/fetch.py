"""Fetches a model from the Hugging Face Hub into the cache folder that its tools share, and checks what came.

The command line calls it; it asks the connection. Parts of files wait in a folder of their own below the
repository's, so that an interruption costs what was on its way and no more.

INVARIANT: a file under its final name has the size and the hash that the hub told for it, because it gets that name
by one rename after both were found on disk; a branch names a snapshot only when all of it is there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from asyncpage.durable import lock, sync_folder
from asyncpage.errors import ModelError, UsageError
from asyncpage.formats.safetensors_folder import INDEX_NAME
from asyncpage.hub.cache import find_model, hub_cache_dir, shards
from asyncpage.hub.connection import Connection, Interrupted
from asyncpage.hub.listing import HubFile, Listing
from asyncpage.hub.name import MAIN, HubName
from asyncpage.hub.selection import select

Tell: TypeAlias = Callable[[str, int, int], None]  # what is done, bytes so far, bytes in all
Answer = TypeVar("Answer")

_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # before another try; one that brought bytes begins them again
_ASKING_WAITS_S = _WAITS_S[:2]  # before anything is shown, where most often there is no network at all


def fetch_model(name: HubName, tell: Tell, connection: Connection, sleep: Callable[[float], None] = time.sleep) -> Path:
    """The snapshot's folder, or the GGUF file in it, with every file that is read of it downloaded and checked.

    Safe to call from several processes at once: the later wait, and check. `tell` is called on this thread.
    Errors: `ModelError` and `UsageError`, one line that says what to do.
    """
    cache = hub_cache_dir()
    try:
        listing = _patiently(name, connection.listing, sleep)
        locks = cache / ".locks" / name.folder_name
        locks.mkdir(parents=True, exist_ok=True)
        with lock(locks / "asyncpage.lock"):
            _Fetch(name, listing, cache / name.folder_name, tell, connection, sleep).run()
    except OSError as error:
        raise UsageError(
            f"cannot keep {name} in {cache}: {error.strerror or error}; mend that, or set HF_HUB_CACHE to another "
            "folder, and run it again: what has come stays"
        ) from error
    return find_model(name)


def _patiently(name: HubName, ask: Callable[[], Answer], sleep: Callable[[float], None]) -> Answer:
    for wait_s in _ASKING_WAITS_S:
        try:
            return ask()
        except Interrupted:
            sleep(wait_s)
    try:
        return ask()
    except Interrupted as error:
        raise _gave_up(name, str(error)) from None


def _gave_up(name: HubName, found: str) -> ModelError:
    return ModelError(
        f"downloading {name} does not go on: {found}; check the network (and HF_ENDPOINT, HTTPS_PROXY), then run it "
        "again: what has come stays"
    )


class _Fetch:
    """One fetch of one commit; the caller holds the lock."""

    def __init__(
        self,
        name: HubName,
        listing: Listing,
        folder: Path,
        tell: Tell,
        connection: Connection,
        sleep: Callable[[float], None],
    ) -> None:
        self._name = name
        self._listing = listing
        self._blobs = folder / "blobs"
        self._snapshot = folder / "snapshots" / listing.commit
        self._refs = folder / "refs"
        self._parts = folder / ".asyncpage"
        self._tell = tell
        self._connection = connection
        self._sleep = sleep

    def run(self) -> None:
        """Bring every file, then say that the branch is this commit."""
        selection = select(self._name, self._listing.files.keys())
        for folder in (self._blobs, self._snapshot, self._parts):
            folder.mkdir(parents=True, exist_ok=True)
        self._bring(selection.files)
        if selection.is_sharded:
            self._bring(shards(self._snapshot / INDEX_NAME))
        self._name_commit()
        shutil.rmtree(self._parts)  # with the parts of files that no commit names any more

    def _bring(self, names: Sequence[str]) -> None:
        files = [self._listed(name) for name in names]
        there = sum(file.size for file in files if self._present(file) is not None)
        checked = 0
        missing = []
        for file in files:
            present = self._present(file)
            if present is not None and file.found(present) == file.digest:
                self._link(file)
                checked += file.size
                self._tell("checking", checked, there)
            else:
                missing.append(file)
        by_digest: dict[str, HubFile] = {}  # files that are alike come once
        for file in missing:
            by_digest.setdefault(file.digest, file)
        contents = tuple(by_digest.values())
        self._demand_room(contents)
        total = sum(file.size for file in contents)
        before = 0
        for file in contents:
            self._download(file, before, total)
            before += file.size
        checked = 0
        for file in contents:
            self._name_checked(file)
            checked += file.size
            self._tell("checking", checked, total)
        for file in missing:
            self._link(file)

    def _listed(self, name: str) -> HubFile:
        if name not in self._listing.files:
            raise ModelError(f"{self._name} has no {name}, which its {INDEX_NAME} names; the repository is not whole")
        file = self._listing.files[name]
        if file is None:
            raise ModelError(f"the hub does not say by which size and hash to check {name}; check HF_ENDPOINT")
        return file

    def _present(self, file: HubFile) -> Path | None:
        """Where a file of the right size lies already, be it for another commit or without links."""
        for path in (self._snapshot / file.name, self._blobs / file.digest):
            if path.is_file() and path.stat().st_size == file.size:
                return path
        return None

    def _demand_room(self, missing: Sequence[HubFile]) -> None:
        needed = sum(file.size - _size(self._part(file)) for file in missing)
        free = shutil.disk_usage(self._parts).free
        if needed > free:
            raise UsageError(
                f"{self._name} needs {needed / 1e9:.1f} GB more in {self._parts.parent}, where {free / 1e9:.1f} GB are "
                "free; make room, or set HF_HUB_CACHE to a folder on another disk"
            )

    def _download(self, file: HubFile, before: int, total: int) -> None:
        """Bring the file's part to its full length, however often that is broken off."""
        tries = 0
        part = self._part(file)
        while not part.exists() or _size(part) != file.size:
            size = _size(part)
            try:
                self._append(file, part, before, total)
                found = f"{file.name} ended after {_size(part)} of {file.size} bytes"
            except Interrupted as error:
                found = str(error)
            if _size(part) == file.size:
                break
            tries = 0 if _size(part) > size else tries + 1
            if tries > len(_WAITS_S):
                raise _gave_up(self._name, found)
            self._sleep(_WAITS_S[max(0, tries - 1)])
        self._tell("downloading", before + file.size, total)

    def _append(self, file: HubFile, part: Path, before: int, total: int) -> None:
        start = _size(part)
        if start > file.size:
            part.unlink()
            start = 0
        with self._connection.body(file.name, self._listing.commit, start) as (begins, chunks), part.open("ab") as out:
            out.truncate(begins)
            for chunk in chunks:
                begins += len(chunk)
                if begins > file.size:
                    out.truncate(0)
                    raise ModelError(
                        f"{file.name} of {self._name} is longer than the {file.size} bytes that the hub told; nothing "
                        "of it was kept; run it again, and check HF_ENDPOINT if that does not help"
                    )
                out.write(chunk)
                self._tell("downloading", before + begins, total)

    def _name_checked(self, file: HubFile) -> None:
        """Give a whole part its final name, if it is what the hub told."""
        part = self._part(file)
        found = file.found(part)
        if found != file.digest:
            part.unlink()
            raise ModelError(
                f"{file.name} of {self._name} is not the file it should be: its hash is {found}, expected "
                f"{file.digest}; it was removed; run it again, and check HF_ENDPOINT if that does not help"
            )
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, self._blobs / file.digest)
        sync_folder(self._blobs)

    def _link(self, file: HubFile) -> None:
        """Let the snapshot have the file, as the cache's other users do: by a relative link."""
        target = self._snapshot / file.name
        if target.is_file() and not target.is_symlink() and file.found(target) == file.digest:
            return  # a cache without links
        target.parent.mkdir(parents=True, exist_ok=True)
        link = self._parts / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(self._blobs / file.digest, target.parent))
        os.replace(link, target)

    def _name_commit(self) -> None:
        revision = self._name.revision or MAIN
        if revision == self._listing.commit:
            return
        ref = self._refs / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        written = self._parts / "ref"
        written.write_text(self._listing.commit, encoding="ascii")
        os.replace(written, ref)
        sync_folder(ref.parent)

    def _part(self, file: HubFile) -> Path:
        return self._parts / f"{file.digest}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
