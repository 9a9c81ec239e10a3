"""Asks the executor what a model's step is made of and, after a short run, where its time goes.

`doctor --model` asks; `step_table` prints. The model runs in this process, without an engine around it.

INVARIANT: a model that cannot be run here is listed all the same, with the reason why it was not measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncpage.cli import step_table
from asyncpage.config import EngineConfig
from asyncpage.errors import AsyncpageError
from asyncpage.progress import Progress

if TYPE_CHECKING:
    from asyncpage.executor.step_clock import StepTimes
    from asyncpage.executor.step_graph import StepGraph


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """`context`: tokens that attention sees, None for the model's own. `rows`: of the step that is measured."""

    model: str
    dtype: str
    context: int | None
    rows: int
    is_measured: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """`times`: None when nobody asked for them, or when they could not be had: `unmeasured` then says why."""

    graph: StepGraph
    times: StepTimes | None
    unmeasured: str

    def lines(self) -> Iterator[str]:
        return step_table.lines(self.graph, self.times)

    def data(self) -> dict[str, Any]:
        return step_table.as_data(self.graph, self.times)


def read_step_report(question: StepQuestion) -> StepReport:
    """Progress is shown on standard error. Errors: as `read_step_graph`."""
    from asyncpage.executor.step_clock import measure
    from asyncpage.executor.step_graph import read_step_graph
    from asyncpage.house import executor_settings
    from asyncpage.store import resolve_model

    config = EngineConfig(model=question.model, dtype=question.dtype)
    settings = executor_settings(config, resolve_model(question.model), None, None)
    graph = read_step_graph(settings, question.context)
    if not question.is_measured:
        return StepReport(graph, None, "")
    print(f"loading {graph.elements / 1e6:.0f} million weights to measure a step ...", file=sys.stderr, flush=True)
    progress = Progress("measuring", "steps", sys.stderr, time.monotonic)
    try:
        return StepReport(graph, measure(graph, settings, question.rows, progress.update), "")
    except AsyncpageError as error:
        return StepReport(graph, None, str(error))
    finally:
        progress.close()
