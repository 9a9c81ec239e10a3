"""Which requests the steps in flight held, and how far each was to come: what a loss or a failed step makes suspect.

The scheduler asks when it hears of one, the planner what a step that came back got done; both tell the quarantine.

INVARIANT: a request that has left its row since is never named.
"""

from __future__ import annotations

from asyncpage.core.returned import StepRecord
from asyncpage.core.running import Running
from asyncpage.messages import RequestId


def progress(running: Running, record: StepRecord) -> dict[RequestId, int]:
    """Living requests of a step, with the computed tokens that it brought each to."""
    rows = [row for row in record.rows.tolist() if running.is_served(record, row)]
    ends = record.ends[rows].tolist() if rows else ()
    return {running.occupant(row).request: end for row, end in zip(rows, ends, strict=True)}


def unreturned(running: Running, number: int | None = None) -> dict[RequestId, int]:
    """Living requests of the steps in flight, with the computed tokens the first of these steps was to reach.

    With `number`, of that step alone.
    """
    suspects: dict[RequestId, int] = {}
    for record in running.in_flight:
        if number is None or record.number == number:
            for request, end in progress(running, record).items():
                suspects.setdefault(request, end)
    return suspects


def held_one(running: Running, number: int | None = None) -> bool:
    """Whether the steps in flight, or that one, held a single request, also counting those that have left since."""
    records = [record for record in running.in_flight if number is None or record.number == number]
    lives = {(row, int(record.lives[row])) for record in records for row in record.rows.tolist()}
    return len(lives) == 1
