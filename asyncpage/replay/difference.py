"""The first decision that today's code makes otherwise, as one block of text.

INVARIANT: both decisions are shown, and what led to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncpage.replay.view import differences, shown

_MOST_PLACES = 12


@dataclass(frozen=True, slots=True)
class Decision:
    """What an actor did: sent `to` a message of class `name` with these fields, or died (`to` empty)."""

    actor: str
    to: str
    name: str
    fields: Any = None

    def __str__(self) -> str:
        if not self.to:
            return f"the {self.actor} dies of {self.name}"
        return f"the {self.actor} sends {self.name} to the {self.to}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay stopped. A side that decided nothing is None.

    `step`: of the settlement under way. `record`: the record's number. `seconds`: since the recording began.
    """

    step: int
    record: int
    seconds: float
    cause: str
    recorded: Decision | None
    today: Decision | None

    def __str__(self) -> str:
        lines = [
            f"step {self.step}: the first decision that differs, {self.seconds:.6f} s after the recording began "
            f"(record {self.record})",
            f"  after     {self.cause}",
        ]
        recorded, today = self.recorded, self.today
        same_message = recorded and today and (recorded.to, recorded.name) == (today.to, today.name)
        lines.append(f"  recorded  {recorded or 'nothing more'}")
        if not same_message:
            lines += _fields(recorded)
        lines.append(f"  today     {today or 'nothing more'}")
        if not same_message:
            lines += _fields(today)
        elif recorded and today:
            places = list(differences(recorded.fields, today.fields))
            for path, one, other in places[:_MOST_PLACES]:
                lines += [f"    {path or 'value'}", f"      recorded  {shown(one)}", f"      today     {shown(other)}"]
            if len(places) > _MOST_PLACES:
                lines.append(f"    ... and {len(places) - _MOST_PLACES} more places")
        return "\n".join(lines)


def _fields(decision: Decision | None) -> list[str]:
    if decision is None or not isinstance(decision.fields, dict):
        return []
    return [f"      {name} = {shown(value)}" for name, value in decision.fields.items()]
