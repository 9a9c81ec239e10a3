"""Where an executor runs: in a process of its own, or in a thread of this one.

The engine asks at start, when it was given no launcher.

INVARIANT: torch is imported here only where the executor shall share this process.
"""

from __future__ import annotations

from asyncpage.config import EngineConfig
from asyncpage.pipes.launcher import Launcher, ProcessLauncher, ThreadLauncher


def executor_launcher(config: EngineConfig) -> Launcher:
    """What starts executors as `config.placement` says."""
    if config.placement == "process":
        return ProcessLauncher()
    from asyncpage.executor.process import serve
    from asyncpage.executor.runner import load_runner

    return ThreadLauncher(lambda link: serve(link, load_runner))
