"""`asyncpage doctor`: what this machine offers and lacks, each lack with what to type, and what a model's step does.

Looks and reports; changes nothing. Exits with 1 when serving the model, or else the demo model, would fail.

INVARIANT: a check that fails is a line of the report, never the end of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import asyncpage
from asyncpage.cli.command import Command, Environment
from asyncpage.cli.expert_report import report as expert_report
from asyncpage.cli.step_report import StepQuestion, StepReport, read_step_report
from asyncpage.errors import AsyncpageError, ModelError, UsageError
from asyncpage.formats.expert_load import read_expert_load

_EXAMPLES = """\
examples:
  asyncpage doctor
  asyncpage doctor --json              for bug reports
  asyncpage doctor --model MODEL       and what a step of MODEL does: its operators, what each reads and computes,
                                       and after a short run where the time goes
  asyncpage doctor --model MODEL --no-run                   the operators alone, without loading a weight
  asyncpage doctor --model MODEL --rows 8 --context 4000    time of a batch of 8 behind 4000 tokens
  asyncpage doctor --expert-load load.json --expert-parallel-size 4
"""

# torch is asked in a process of its own: loading it takes seconds, may crash, and belongs to the executor's side.
_TORCH_PROBE = """
import json, torch
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "cuda": torch.cuda.is_available()}))
"""
_TORCH_LIMIT_S = 120.0

_COMPILER = "apt install g++, where the processor has AVX2; CXX names a compiler of another name"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `hint` says what to type, "" when there is nothing to mend."""

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    hint: str = ""


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="what 'serve' takes: check it and list its operators (else the demo is checked)",
    )
    parser.add_argument("--no-run", action="store_true", help="list operators without loading and running the model")
    parser.add_argument(
        "--context", metavar="TOKENS", type=int, help="tokens that attention sees (default: the model's, up to 1024)"
    )
    parser.add_argument("--rows", metavar="N", type=int, default=1, help="rows of a step that is measured (default: 1)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="type of weights (see 'serve')",
    )
    parser.add_argument("--json", action="store_true", help="as JSON: findings, or with --model findings and operators")
    parser.add_argument(
        "--expert-load", metavar="FILE", help="look at this file of a server's --expert-load, and at nothing else"
    )
    parser.add_argument(
        "--expert-parallel-size", metavar="N", type=int, default=2, help="ranks that it would place experts on"
    )


def _run(arguments: argparse.Namespace, environment: Environment) -> int:
    report: StepReport | None = None
    if arguments.expert_load is not None:
        findings = list(_experts(Path(arguments.expert_load), arguments.expert_parallel_size))
    else:
        question = _question(arguments)
        findings = list(_examine(arguments.model or "demo"))
        if question is not None and not any(finding.state == "missing" for finding in findings):
            try:
                report = read_step_report(question)
            except ModelError as error:
                findings.append(
                    Finding("step", "warning", f"not listed: {error}", "asyncpage bench measures any model")
                )
            if report is not None and report.unmeasured:
                findings.append(
                    Finding("step", "warning", f"not measured: {report.unmeasured}", "--no-run leaves it out")
                )
    if arguments.json:
        found = [asdict(finding) for finding in findings]
        print(json.dumps(found if report is None else {"findings": found, "step": report.data()}, indent=2))
    else:
        print(f"asyncpage {asyncpage.__version__}")
        for finding in findings:
            print(f"  {finding.name:<18} {finding.state:<8} {finding.found}")
            if finding.hint:
                print(f"  {'':<18} {'':<8} -> {finding.hint}")
        if report is not None:
            print("\n" + "\n".join(report.lines()))
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def _question(arguments: argparse.Namespace) -> StepQuestion | None:
    """What is asked of the model's step, None where no model is named. Errors: `UsageError`."""
    for name in ("context", "rows"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise UsageError(f"--{name} must be 1 or more, got {value}")
    if arguments.model is None:
        given = (arguments.no_run, arguments.context is not None, arguments.rows != 1, arguments.dtype != "auto")
        names = ("--no-run", "--context", "--rows", "--dtype")
        for name, is_given in zip(names, given, strict=True):
            if is_given:
                raise UsageError(f"{name} is about a model's step; name the model, too: --model demo")
        return None
    return StepQuestion(arguments.model, arguments.dtype, arguments.context, arguments.rows, not arguments.no_run)


def _examine(model: str) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield from _packages()
    torch = _torch()
    yield torch
    yield from _machine()
    path, found = _model(model)
    yield from found
    if torch.state == "ok":  # what follows loads it into this process, which only now is known to go well
        code = _native()
        yield code
        if path is not None:
            yield from _weights(path, is_native=code.state == "ok")
        yield from _backends()


def _experts(path: Path, ranks: int) -> Iterator[Finding]:
    for name, found in expert_report(read_expert_load(path), ranks):
        yield Finding(name, "ok", found)


def _packages() -> Iterator[Finding]:
    for requirement in requires("asyncpage") or ():
        if "extra ==" in requirement:
            continue
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            if name == "uvloop":
                yield Finding(name, "warning", "not installed: asyncio's own loop is used", "pip install uvloop")
            else:
                yield Finding(name, "missing", "not installed", "pip install asyncpage")


def _torch() -> Finding:
    try:
        version("torch")
    except PackageNotFoundError:
        return Finding("torch", "missing", "not installed", "pip install 'asyncpage[torch]'")
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=_TORCH_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "torch", "missing", f"did not load within {_TORCH_LIMIT_S:g} s", "pip install --force-reinstall torch"
        )
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return Finding("torch", "missing", f"does not load: {last}", "pip install --force-reinstall torch")
    answer = json.loads(asked.stdout)
    device = "an accelerator" if answer["cuda"] else "no accelerator"
    return Finding("torch", "ok", f"{answer['version']}, {device}, {answer['threads']} threads of its own choice")


def _machine() -> Iterator[Finding]:
    from asyncpage.machine import read_cores, read_memory

    cores = read_cores()
    yield Finding("cores", "ok", f"{cores:g} of {os.cpu_count()} may be used")
    memory = read_memory()
    limit = f", limited to {_gib(memory.limit)} by the control group" if memory.limit else ""
    yield Finding("memory", "ok", f"{_gib(memory.available)} available of {_gib(memory.total)}{limit}")
    wake = "eventfd" if hasattr(os, "eventfd") else "socket pairs"
    death = "pidfd" if hasattr(os, "pidfd_open") else "none"
    state: Literal["ok", "warning"] = "ok" if sys.platform == "linux" else "warning"
    yield Finding(
        "kernel", state, f"wake-up by {wake}, process sentinel {death}", "" if state == "ok" else "use Linux or WSL"
    )


def _model(name: str) -> tuple[Path | None, tuple[Finding, ...]]:
    from asyncpage.caches import cache_dir
    from asyncpage.hub.cache import hub_cache_dir
    from asyncpage.hub.name import INSTALL, has_extra
    from asyncpage.store import resolve_model

    fetching = "asyncpage fetch ORG/NAME" if has_extra() else INSTALL
    caches = (
        Finding("cache folder", "ok", str(cache_dir())),
        Finding("hub's cache", "ok", f"{hub_cache_dir()}, to put a model there: {fetching}"),
    )
    title = "demo model" if name == "demo" else "model"
    try:
        path = resolve_model(name)
    except AsyncpageError as error:
        hint = "asyncpage fetch demo" if name == "demo" else "asyncpage doctor --model, with a file or folder"
        return None, (*caches, Finding(title, "missing", str(error).splitlines()[0], hint))
    files = (path,) if path.is_file() else tuple(path.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    return path, (*caches, Finding(title, "ok", f"{path} ({size / 1e6:.0f} MB)"))


def _native() -> Finding:
    """Which native code multiplies by quantised weights on this CPU."""
    from asyncpage.caches import native_folder
    from asyncpage.kernels.native import look

    found = look(native_folder())
    if found.state != "none":
        return Finding("native code", "ok", found.reason)
    return Finding("native code", "warning", f"none, so quantised weights are dequantised: {found.reason}", _COMPILER)


def _weights(path: Path, *, is_native: bool) -> Iterator[Finding]:
    """What they take. `is_native`: there is code that multiplies by quantised ones as they are."""
    from asyncpage.executor.holding import read_holding

    try:
        holding = read_holding(path)
    except AsyncpageError as error:
        yield Finding("weights", "missing", str(error).splitlines()[0], "asyncpage serve, with another model")
        return
    yield Finding("model family", "ok", holding.family)
    sizes = f"{_gib(4 * holding.weights)} as float32, {_gib(2 * holding.weights)} as bfloat16 or float16"
    if holding.stored_as:
        sizes = f"stored as {' and '.join(holding.stored_as)}, dequantised: {sizes}"
        if is_native and holding.kinds:
            as_stored = f"{' and '.join(holding.kinds)} held as they are on a CPU: {_gib(holding.bytes_as_stored)}"
            sizes = f"stored as {' and '.join(holding.stored_as)}, {as_stored}; with --exact {sizes.split(', ', 1)[1]}"
    yield Finding("weights", "ok", sizes)


def _backends() -> Iterator[Finding]:
    from asyncpage.backends.device import device_named
    from asyncpage.backends.registry import explain
    from asyncpage.cli.backends import demo_spec

    for verdict in explain(demo_spec(), device_named("cpu")):
        state: Literal["ok", "warning"] = "warning" if verdict.reasons else "ok"
        found = "; ".join(verdict.reasons) or ("chosen on this CPU" if verdict.is_chosen else "would do")
        yield Finding(
            f"backend {verdict.name}", state, found, "asyncpage backends --explain" if verdict.reasons else ""
        )


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"


COMMAND = Command(
    "doctor",
    "[--model MODEL [--no-run] [--context TOKENS] [--rows N] [--dtype TYPE]] [--json] [--expert-load FILE]",
    "report what this machine offers and lacks",
    _EXAMPLES,
    _declare,
    _run,
)
