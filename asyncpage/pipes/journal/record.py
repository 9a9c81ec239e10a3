"""What a journal holds: a head, then records of causes and effects in the order in which they came about.

A cause is something that an actor was given: a message from outside (`RECEIVED`, whole), a message that the other
recorded actor had sent it (`TAKEN`: it stands in the journal already, where it was sent), the end of a batch, a timer
that fired, the rest of a cut piece of work. An effect is what came of it: a message that it sent (`SENT`), or that the
actor died. Whatever an actor does lies between its cause and the next.

A record is a msgpack array whose first item is its kind.

INVARIANT: any bytes are read as records or refused with `JournalError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_type_hints

import msgpack

from asyncpage.config import EngineConfig
from asyncpage.errors import JournalError, ProtocolError
from asyncpage.messages import Handshake
from asyncpage.pipes.journal.dialect import journal_dialect
from asyncpage.pipes.journal.pseudonym import AsRecorded
from asyncpage.pipes.record import Dialect, unpack_plain

ACTORS = ("scheduler", "kv_manager")
"""Those that are recorded, by the numbers that records name them with."""

RECEIVED, TAKEN, BATCH_END, FIRED, RESUMED, SENT, DIED, STOPPED = range(8)

_SIZES = {RECEIVED: 5, TAKEN: 3, BATCH_END: 3, FIRED: 4, RESUMED: 3, SENT: 5, DIED: 3, STOPPED: 2}


class Record(NamedTuple):
    """One record. What a kind does not have is empty.

    `actor`: index in `ACTORS`. `time`: seconds on the engine's clock, of a cause. `name`: the message's class, or what
    an actor died of, or why recording stopped. `to`: whom a message was sent to. `timer`: which one, counted as set.
    `plain`: a received message's fields; `packed`: a sent one's, as msgpack.
    """

    kind: int
    actor: int = 0
    time: float = 0.0
    name: str = ""
    to: str = ""
    timer: int = 0
    plain: Any = None
    packed: bytes = b""


@dataclass(frozen=True, slots=True)
class Head:
    """What a segment begins with.

    `recording`: random, the same in all segments of one recording. `segment`: 0 for the first. `config`: as it was in
    force. `eos_ids`, `has_tokens`: pseudonyms unless the journal has true ids. `wall_offset`: add it to the engine's
    clock for seconds since the epoch. `shapes`: the fields of every message class when it was written.
    """

    version: str
    recording: bytes
    segment: int
    config: EngineConfig
    handshake: Handshake
    seed: int
    eos_ids: tuple[int, ...]
    has_tokens: bool
    wall_offset: float
    shapes: Mapping[str, tuple[str, ...]]


def pack_head(head: Head) -> bytes:
    """The head as the first chunk's bytes."""
    dialect = Dialect()
    plain = {field.name: getattr(head, field.name) for field in fields(Head)}
    config = {field.name: getattr(head.config, field.name) for field in fields(EngineConfig)}
    packed: bytes = msgpack.packb({**plain, "config": config, "handshake": dialect.plain(head.handshake)})
    return packed


def unpack_head(data: bytes) -> Head:
    """Errors: `JournalError` when it is none, or lacks what today's version needs."""
    try:
        plain = unpack_plain(data)
        if type(plain) is not dict or type(plain.get("shapes")) is not dict:
            raise ProtocolError("it is no map")
        shapes = {str(name): Dialect().rebuild(tuple[str, ...], shape) for name, shape in plain["shapes"].items()}
        dialect = Dialect(shapes=shapes)
        hints = get_type_hints(Head)
        values = {
            field.name: dialect.rebuild(hints[field.name], plain.get(field.name))
            for field in fields(Head)
            if field.name not in ("config", "shapes")
        }
        return Head(**values, config=_config(dialect, plain.get("config")), shapes=shapes)
    except ProtocolError as error:
        raise JournalError(f"the journal's head cannot be read: {error}") from None


def _config(dialect: Dialect, plain: Any) -> EngineConfig:
    """Settings of another version: those that are gone are passed over, new ones have their defaults."""
    if type(plain) is not dict:
        raise ProtocolError("the configuration is no map")
    hints = get_type_hints(EngineConfig)
    known = [field.name for field in fields(EngineConfig) if field.name in plain]
    return EngineConfig(**{name: dialect.rebuild(hints[name], plain[name]) for name in known})


def reading_dialect(head: Head) -> Dialect:
    """Reads the messages of a journal with this head, and writes today's the same way."""
    return journal_dialect(AsRecorded(), head.shapes)


def unpack_records(data: bytes) -> Iterator[Record]:
    """The records of one chunk. Errors: `JournalError`."""
    unpacker = msgpack.Unpacker(
        use_list=False, raw=False, unicode_errors="surrogatepass", max_buffer_size=max(1, len(data)), timestamp=1
    )
    unpacker.feed(data)
    done = 0
    while done < len(data):
        try:
            item = unpacker.unpack()
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            raise JournalError(f"a chunk of the journal holds no record at {done}: {type(error).__name__}") from None
        yield _record(item)
        done = unpacker.tell()


def _record(item: Any) -> Record:
    kind = item[0] if type(item) is tuple and item else None
    if type(kind) is not int or len(item) != _SIZES.get(kind):
        raise JournalError(f"the journal holds what is no record: {item!r:.60}")
    match item:
        case (6, int() as actor, str() as name):
            record = Record(DIED, actor, name=name)
        case (7, str() as name):
            record = Record(STOPPED, name=name)
        case (5, int() as actor, str() as to, str() as name, bytes() as packed):
            record = Record(SENT, actor, name=name, to=to, packed=packed)
        case (0, int() as actor, float() as time, str() as name, tuple() as plain):
            record = Record(RECEIVED, actor, time, name, plain=plain)
        case (3, int() as actor, float() as time, int() as timer):
            record = Record(FIRED, actor, time, timer=timer)
        case (1 | 2 | 4, int() as actor, float() as time):
            record = Record(kind, actor, time)
        case _:
            raise JournalError(f"the journal holds a record with wrong values: {item!r:.60}")
    if not 0 <= record.actor < len(ACTORS):
        raise JournalError(f"the journal names an actor {record.actor}")
    return record
