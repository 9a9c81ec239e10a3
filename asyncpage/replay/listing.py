"""A journal as lines of text: one for each message that an actor got from outside, and one for each that it sent.

`asyncpage replay FILE --list` prints them; they need no replay, so a journal that has lost its beginning can be read.

INVARIANT: every line names the time, the actor, the message, and what in it decides; steady columns are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asyncpage.pipes.journal.reader import JournalReader
from asyncpage.pipes.journal.record import ACTORS, DIED, FIRED, RECEIVED, ROOT, SENT
from asyncpage.pipes.record import unpack_plain
from asyncpage.replay.view import Fields, shown, view


def lines(reader: JournalReader) -> Iterator[str]:
    """Errors: `JournalError` where the journal is damaged."""
    shapes = reader.head.shapes
    began: float | None = None
    now = 0.0
    for record in reader.records():
        if record.kind == ROOT:
            continue
        actor = ACTORS[record.actor]
        if record.kind not in (SENT, DIED):
            began = record.time if began is None else began
            now = record.time - began
        if record.kind == RECEIVED:
            told = _told(record.name, view(record.name, record.plain, shapes))
            yield f"{now:12.6f}  {actor:<10} got   {record.name}{told}"
        elif record.kind == SENT:
            told = _told(record.name, view(record.name, unpack_plain(record.packed), shapes))
            yield f"{now:12.6f}  {actor:<10} sent  {record.name}{told} to the {record.to}"
        elif record.kind == FIRED:
            yield f"{now:12.6f}  {actor:<10} timer {record.timer} fired"
        elif record.kind == DIED:
            yield f"{now:12.6f}  {actor:<10} died  of {record.name}"


def _told(name: str, fields: Any) -> str:
    tell = _TELL.get(name, _everything)
    try:
        return tell(fields)
    except (KeyError, TypeError, IndexError):  # of another version: its own fields tell enough
        return _everything(fields)


def _everything(fields: Any) -> str:
    if not isinstance(fields, Fields):
        return f": {shown(fields)}"
    return "".join(f" {name}={shown(value)}" for name, value in fields.items())


def _admit(fields: Mapping[str, Any]) -> str:
    options, sampling = fields["options"], fields["sampling"]
    most = sampling.get("max_tokens", "any")
    label = f" {options['label']}" if options["label"] else ""
    return f" {fields['request']}{label}: {len(fields['tokens']) // 4} tokens, at most {most} more" + _listed(
        ("choices", sampling.get("n", 1) if sampling.get("n", 1) > 1 else None),
        ("priority", options["priority"] or None),
        ("deadline", options["deadline"]),
    )


def _reserve(fields: Mapping[str, Any]) -> str:
    wants = [want for want in fields["wants"] if want]
    return f" {fields['number']}: {len(wants)} rows want {sum(wants)} of {fields['budget_tokens']} tokens" + _listed(
        ("candidates", [candidate["request"] for candidate in fields["candidates"]]),
        ("released rows", [released["row"] for released in fields["released"]]),
        ("filled blocks", len(fields["filled"]) or None),
    )


def _granted(fields: Mapping[str, Any]) -> str:
    admitted = [f"{a['request']} in row {a['row']} ({a['computed']} cached)" for a in fields["admitted"]]
    return (
        f" {fields['number']}: {len(fields['rows'])} rows, {sum(fields['counts'])} tokens, "
        f"{len(fields['blocks'])} new blocks, {fields['free_blocks']} free"
    ) + _listed(
        ("admitted", admitted),
        ("preempted rows", fields["victims"]),
        ("copies", fields["copies"]),
        ("parked", fields["parked"]),
        ("woken", fields["woken"]),
        ("saves", fields["saves"]),
        ("loads", fields["loads"]),
    )


def _step(fields: Mapping[str, Any]) -> str:
    return f" {fields['number']} of epoch {fields['epoch']}: {len(fields['rows'])} rows, {sum(fields['counts'])} tokens"


def _step_done(fields: Mapping[str, Any]) -> str:
    return f" {fields['number']} of epoch {fields['epoch']}: {len(fields['tokens'])} tokens" + _listed(
        ("failed", fields["failed"]),
    )


def _step_tokens(fields: Mapping[str, Any]) -> str:
    return f": {len(fields['tokens'])} tokens" + _listed(
        ("started", [started["request"] for started in fields["started"]]),
        ("ended", [f"{end['request']} ({end['reason']})" for end in fields["ends"]]),
    )


def _expect(fields: Mapping[str, Any]) -> str:
    return f" {fields['request']}: {fields['prompt_tokens']} prompt tokens"


def _cache_events(fields: Mapping[str, Any]) -> str:
    counts = Counter((kind, medium) for kind, medium, _ in fields["events"])
    return ": " + ", ".join(f"{count} blocks {kind} ({medium})" for (kind, medium), count in counts.items())


def _listed(*parts: tuple[str, Any]) -> str:
    return "".join(f"; {name} {shown(value)}" for name, value in parts if value not in (None, [], ()))


_TELL: Mapping[str, Callable[[Any], str]] = {
    "Admit": _admit,
    "Reserve": _reserve,
    "Granted": _granted,
    "Step": _step,
    "StepDone": _step_done,
    "StepTokens": _step_tokens,
    "Expect": _expect,
    "CacheEvents": _cache_events,
}
