"""The adapters that requests may name: loaded under a name, replaced, and unloaded while others run.

The engine owns one; routes and programs load and unload through it, and ask it what a request's model name stands for.
A request takes the adapter along, so what is loaded or unloaded later changes nothing for it.

INVARIANT: a name stands for an adapter that was read and checked from end to end, and what has not been is not listed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from asyncpage.adapters.adapter_file import AdapterFile
from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, RequestError, UsageError, request_error
from asyncpage.messages import AdaptableLinear, Adapter, Handshake, RequestOptions

log = structlog.get_logger("asyncpage.adapters")

MOST_ADAPTERS = 4096
"""Names at once: each is a path and a digest, the tensors are read when somebody asks."""

MOST_WAITING = 16
"""Loads that may wait for the one at work."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


class AdapterShelf:
    """Of an engine of this configuration, whose executor has told what adapters may change. `served`: the model's own
    names.
    """

    def __init__(self, config: EngineConfig, served: tuple[str, ...], handshake: Handshake) -> None:
        self._config = config
        self._linears = {linear.name: linear for linear in handshake.linears}
        self.served = served
        self._loaded: dict[str, Adapter] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were loaded."""
        return tuple(self._loaded)

    def find(self, name: str) -> Adapter | None:
        """The adapter of this name; None for a name of the model itself. Errors: `RequestError` 404 for any other."""
        adapter = self._loaded.get(name)
        if adapter is None and name not in self.served:
            served = ", ".join((*self.served, *self._loaded))
            raise RequestError(
                f"the model {name[:128]!r} does not exist here; served: {served}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return adapter

    def chosen(self, name: str | None, options: RequestOptions) -> RequestOptions:
        """`options` with the adapter of this name; as they are for None. Errors: as `find`."""
        return options if name is None else replace(options, lora=self.find(name))

    async def load_configured(self) -> None:
        """Those of `--lora`. Errors: `UsageError`, `ModelError`."""
        for text in self._config.lora:
            name, _, folder = text.partition("=")
            if name in self._loaded or name in self.served:
                raise UsageError(f"--lora {text}: the name {name} is taken; give each model and adapter one of its own")
            try:
                await self.load(name, folder)
            except RequestError as error:
                raise ModelError(f"--lora {text}: {error}") from error

    async def load_allowed(self, name: str, path: str) -> Adapter:
        """As `load`, from inside one of the folders that `--lora-dir` names; relative paths begin there.

        Errors: as `load`.
        """
        folder = await asyncio.to_thread(_inside, self._config.lora_dir, path)
        if folder is None:
            text = f"{path[:200]!r} is no folder inside of those that adapters may be loaded from (--lora-dir)"
            raise RequestError(text, code="adapter_invalid", param="lora_path")
        try:
            return await self.load(name, str(folder))
        except RequestError as error:  # where the folders lie is nobody's business outside
            raise request_error(
                replace(error.failure, message=error.failure.message.replace(str(folder), path[:200]))
            ) from None

    def check_open(self) -> None:
        """Errors: `RequestError` 403 where adapters may not be loaded and unloaded over the API."""
        if not self._config.lora_dir:
            text = "loading and unloading adapters over the API is off here; start with --lora-dir FOLDER"
            raise RequestError(text, status=403, code="adapters_off")

    async def load(self, name: str, folder: str) -> Adapter:
        """Read and check an adapter, then let requests name it; one that had the name is replaced.

        Errors: `RequestError` 400 for a name or files that cannot be used, 429 when too many loads wait.
        """
        self._check_name(name)
        if self._waiting >= MOST_WAITING:
            text = f"{self._waiting} adapters wait to be loaded already; try again later"
            raise RequestError(text, status=429, code="too_many_loads", retry_after_s=1.0)
        self._waiting += 1
        try:
            async with self._turn:
                adapter = await asyncio.to_thread(read_adapter, folder, self._linears, self._config.max_lora_rank)
        except ModelError as error:
            raise RequestError(str(error), code="adapter_invalid", param="lora_path") from error
        finally:
            self._waiting -= 1
        self._check_name(name)  # others were loaded meanwhile
        self._loaded.pop(name, None)
        self._loaded[name] = adapter
        log.info("adapter.loaded", name=name, identity=adapter.identity[:16], adapters=len(self._loaded))
        return adapter

    def unload(self, name: str) -> None:
        """Take no more requests for it; those that run go on. Errors: `RequestError` 404 when it is not loaded."""
        if name not in self._loaded:
            raise RequestError(
                f"no adapter {name[:128]!r} is loaded", status=404, code="adapter_not_found", param="lora_name"
            )
        del self._loaded[name]
        log.info("adapter.unloaded", name=name, adapters=len(self._loaded))

    def _check_name(self, name: str) -> None:
        if not self._config.has_lora:
            raise RequestError("adapters are off here; start with --enable-lora", code="adapters_off")
        if not NAME.fullmatch(name):
            text = f"an adapter's name is made of letters, digits and ._:/+=@-, at most 128; got {name[:140]!r}"
            raise RequestError(text, param="lora_name")
        if name in self.served:
            raise RequestError(f"{name} is a name of the model itself; choose another", param="lora_name")
        if len(self._loaded) >= MOST_ADAPTERS and name not in self._loaded:
            text = f"{MOST_ADAPTERS} adapters are loaded already; unload one first"
            raise RequestError(text, status=429, code="too_many_adapters", retry_after_s=1.0)


def read_adapter(folder: str, linears: Mapping[str, AdaptableLinear], max_rank: int) -> Adapter:
    """Check an adapter from end to end. Errors: `ModelError`, `FormatError`."""
    path = Path(folder).expanduser().absolute()
    try:
        file = AdapterFile(path, linears, max_rank)
        try:
            for _ in file.read():
                pass
        finally:
            file.close()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    return Adapter(file.identity, str(path))


def _inside(allowed: Sequence[str], path: str) -> Path | None:
    """The folder that a path means inside of one of those, links followed; None when it means none."""
    for one in allowed:
        root = Path(one).expanduser().resolve()
        try:
            folder = (root / path).resolve()
            if folder.is_relative_to(root) and folder.is_dir():
                return folder
        except (OSError, ValueError, RuntimeError):  # a loop of links, or a text that is no path
            return None
    return None
