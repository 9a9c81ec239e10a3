"""A latency model in a file: TOML, written by `asyncpage simulate --fit` and read by `--latency`.

INVARIANT: what is read back is what was written, to the last bit; an unknown key is refused by name.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields
from pathlib import Path

from asyncpage.core.step_latency import StepLatency
from asyncpage.errors import UsageError
from asyncpage.simulation.fit import Fit
from asyncpage.simulation.run import Machine

_KEYS = tuple(field.name for field in fields(StepLatency))


LARGE_GPU = Machine(
    StepLatency(base_s=7e-3, per_token_s=4e-5, per_context_s=5e-8, per_row_s=1e-5, gap_s=2e-4, per_pair_s=1.3e-9),
    "simulated",
)
"""A rough guess, for a first look: 8 billion weights of 16 bits, read at 2.3 TB/s and computed at 400 TFLOP/s.

Attention of 32 layers, 4,096 wide, takes half a million operations a pair of tokens.
"""


def latency_text(fit: Fit, device: str, source: str, flags: str) -> str:
    """The file's text. `device` is the handshake's, `source` says what it was fitted from, `flags` of which engine."""
    lines = [
        f"# Seconds of a step, fitted from {fit.steps} steps of {' '.join(source.split())}.",
        f"# Variance explained {fit.explained:.4f}, mean error of a step {1e3 * fit.off_s:.3f} ms, "
        f"modelled time {fit.total_ratio:.4f} of the measured.",
        f"# The engine ran with: {flags}",
        "[latency]",
        f'device = "{device}"',
        *(f"{name} = {value!r}" for name, value in asdict(fit.latency).items()),
    ]
    return "\n".join(lines) + "\n"


def read_latency(path: Path) -> Machine:
    """Errors: `UsageError` when the file cannot be read or holds something else."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("latency")
    except OSError as error:
        raise UsageError(f"--latency {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--latency {path} is not TOML: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"--latency {path} has no table [latency]; 'asyncpage simulate --fit JOURNAL' writes one")
    values: dict[str, float] = {}
    for key, value in table.items():
        if key == "device" and isinstance(value, str):
            continue
        if key not in _KEYS:
            raise UsageError(f"{path}: [latency] has no key {key}; it has device, {', '.join(_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{path}: {key} must be a number of seconds, found {value!r}")
        values[key] = float(value)
    latency = StepLatency(**values)
    latency.check()
    return Machine(latency, table.get("device", "simulated"))
