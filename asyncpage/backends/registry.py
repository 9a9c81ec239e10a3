"""Finds attention backends by entry point, checks them, chooses one and says why.

Asked by the executor (`choose`) and by the command line (`explain`). Backends are loaded only when asked about.

INVARIANT: a plugin that cannot be loaded, breaks the contract or raises is reported by name, and stops nobody who
did not choose it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from asyncpage.backends.contract import API, OLDEST_API, AttentionBackend, AttentionSpec, DeviceInfo, GraphSupport
from asyncpage.errors import UsageError

GROUP = "asyncpage.attention_backends"

# What "auto" tries first, fastest first; other plugins follow by name. The reference is for comparison and must be
# asked for: silently serving a hundred times slower would look like a fault.
PREFERENCE = (
    "flashinfer", "flash_attn", "rocm_aiter_fa", "rocm_aiter_unified", "rocm_triton", "triton", "native", "cpu",
)  # fmt: skip
BY_NAME_ONLY = "reference"

_HOOKS = {
    "unsupported": ("spec", "device"),
    "kv_layout": ("spec", "device"),
    "__init__": ("self", "spec", "device", "limits"),
    "workspace_bytes": ("self", "limits"),
    "plan": ("self", "batch", "workspace", "slot"),
    "write_kv": ("self", "k", "v", "kv", "plan", "params"),
    "run": ("self", "q", "kv", "out", "plan", "params", "lse"),
    "copy_tokens": ("self", "kv", "copies"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one backend: `reasons` against it (none: it would do), and what choosing it `gives`.

    `origin`: the distribution that brings it. `is_broken`: it could not be asked. `is_chosen`: "auto" takes it.
    """

    name: str
    origin: str
    reasons: tuple[str, ...]
    gives: str = ""
    is_broken: bool = False
    is_chosen: bool = False


def choose(name: str, spec: AttentionSpec | Sequence[AttentionSpec], device: DeviceInfo) -> type[AttentionBackend[Any]]:
    """The backend called `name`, or for "auto" the first that can serve every given spec on `device`.

    Errors: `UsageError` with each backend's reasons.
    """
    specs = (spec,) if isinstance(spec, AttentionSpec) else tuple(spec)
    if name != "auto":
        backend, reasons = _judge(_entry(name), specs, device)
        if backend is None or reasons:
            raise UsageError(
                f"Attention backend {name!r} cannot run this model on {device}.\n{_table([(name, reasons)])}\n"
                "Pass --attention-backend auto to use one that can."
            )
        return backend
    found = _installed()
    refused = []
    for candidate, entry in found.items():
        if candidate == BY_NAME_ONLY:
            continue
        backend, reasons = _judge(entry, specs, device)
        if backend is not None and not reasons:
            return backend
        refused.append((candidate, reasons))
    raise UsageError(_nobody(refused, found, specs, device))


def check_name(name: str) -> None:
    """Errors: `UsageError` unless a backend of that name is installed, or it is "auto". None is loaded for it."""
    if name != "auto":
        _entry(name)


def load(name: str) -> type[AttentionBackend[Any]]:
    """The backend called `name`, whatever it can serve. Errors: `UsageError` when it is absent or broken."""
    backend, reasons = _judge(_entry(name), (), DeviceInfo("cpu", "any"))
    if backend is None or reasons:
        raise UsageError(f"Attention backend {name!r} cannot be used: {'; '.join(reasons)}")
    return backend


def explain(spec: AttentionSpec | Sequence[AttentionSpec], device: DeviceInfo) -> list[Verdict]:
    """Every installed backend in the order "auto" tries them, with the reasons against it or what it gives."""
    specs = (spec,) if isinstance(spec, AttentionSpec) else tuple(spec)
    verdicts: list[Verdict] = []
    for name, entry in _installed().items():
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
        backend, reasons = _judge(entry, specs, device)
        can = backend is not None and not reasons
        is_chosen = can and name != BY_NAME_ONLY and not any(verdict.is_chosen for verdict in verdicts)
        gives = _gives(name, backend, specs[0], device) if can and backend is not None else ""
        verdicts.append(Verdict(name, origin, reasons, gives, backend is None, is_chosen))
    return verdicts


def _installed() -> dict[str, EntryPoint]:
    found = {entry.name: entry for entry in entry_points(group=GROUP)}

    def place(name: str) -> tuple[int, str]:
        if name == BY_NAME_ONLY:
            return len(PREFERENCE) + 1, name
        return (PREFERENCE.index(name), name) if name in PREFERENCE else (len(PREFERENCE), name)

    return {name: found[name] for name in sorted(found, key=place)}


def _entry(name: str) -> EntryPoint:
    found = _installed()
    if name not in found:
        raise UsageError(f"There is no attention backend {name!r}; installed: {', '.join(found) or 'none'}.")
    return found[name]


def _judge(
    entry: EntryPoint, specs: tuple[AttentionSpec, ...], device: DeviceInfo
) -> tuple[type[AttentionBackend[Any]] | None, tuple[str, ...]]:
    """The backend's class (None when it is broken) and the reasons against it."""
    backend: Any
    try:
        backend = entry.load()
    except Exception as error:  # whatever a stranger's module raises must not end the search
        hint = "; install asyncpage[torch]" if isinstance(error, ImportError) and error.name == "torch" else ""
        return None, (f"cannot be loaded: {type(error).__name__}: {error}{hint}",)
    broken = _breaches(backend)
    if broken:
        return None, broken
    if not OLDEST_API <= backend.api <= API:
        return backend, (f"built for contract {backend.api}, this asyncpage speaks contract {API}",)
    reasons: list[str] = []
    for spec in specs:
        reasons += [
            f"built for contract {backend.api}, which does not know {field!r}"
            for field in spec.asks_beyond(backend.api)
        ]
        try:
            reasons += backend.unsupported(spec, device)
        except Exception as error:  # the same: a stranger's code
            return None, (f"unsupported() raised {type(error).__name__}: {error}",)
    return backend, tuple(dict.fromkeys(reasons))


def _breaches(backend: Any) -> tuple[str, ...]:
    """Where a loaded object breaks the contract's form: attribute or hook, and argument."""
    if not inspect.isclass(backend):
        return (f"its entry point names {backend!r}, which is not a class",)
    api: Any = getattr(backend, "api", None)
    if type(api) is not int:
        return ("has no contract version: 'api' must be a whole number",)
    if not OLDEST_API <= api <= API:  # its hooks are another version's business
        return ()
    found = [] if isinstance(getattr(backend, "graph", None), GraphSupport) else ["'graph' must be a GraphSupport"]
    for hook, arguments in _HOOKS.items():
        function = getattr(backend, hook, None)
        if not callable(function):
            found.append(f"has no hook {hook!r}")
            continue
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            found.append(f"hook {hook!r} does not take ({', '.join(arguments)}): {error}")
    return tuple(found)


def _gives(name: str, backend: type[AttentionBackend[Any]], spec: AttentionSpec, device: DeviceInfo) -> str:
    summary = (inspect.getdoc(backend) or name).splitlines()[0].rstrip(".")
    layout = backend.kv_layout(spec, device)
    told = f"{summary}; {layout.block_bytes:,} bytes a block and layer; graphs: {backend.graph.value}"
    return f"{told}; only when asked for by name" if name == BY_NAME_ONLY else told


def _nobody(
    refused: list[tuple[str, tuple[str, ...]]],
    found: dict[str, EntryPoint],
    specs: tuple[AttentionSpec, ...],
    device: DeviceInfo,
) -> str:
    lines = ["No attention backend can run this model here.", _table(refused) if refused else "  none is installed"]
    if BY_NAME_ONLY in found:
        backend, reasons = _judge(found[BY_NAME_ONLY], specs, device)
        if backend is not None and not reasons:
            lines.append(f"Pass --attention-backend {BY_NAME_ONLY} to run slowly anywhere.")
        else:
            lines.append(_table([(BY_NAME_ONLY, reasons)]))
    return "\n".join(lines)


def _table(rows: list[tuple[str, tuple[str, ...]]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}   {'; '.join(reasons)}" for name, reasons in rows)
