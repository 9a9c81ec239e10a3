"""What a journal holds: a head, then records of causes and effects in the order in which they came about.

A cause is something that an actor was given: a message from outside (`RECEIVED`, whole), a message that the other
recorded actor had sent it (`TAKEN`: it stands in the journal already, where it was sent), the end of a batch, a timer
that fired, the rest of a cut piece of work. An effect is what came of it: a message that it sent (`SENT`), or that the
actor died. Whatever an actor does lies between its cause and the next. Beside these, `ROOT` says of a first block that
lay in a file, under its pseudonym, to which salt and adapter it belongs, as soon as one of their requests has come.

A record is a msgpack array whose first item is its kind.

INVARIANT: any bytes are read as records or refused with `JournalError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_type_hints

import msgpack

from asyncpage.config import EngineConfig
from asyncpage.errors import JournalError, ProtocolError
from asyncpage.messages import Handshake
from asyncpage.pipes.journal.dialect import journal_dialect
from asyncpage.pipes.journal.pseudonym import AsRecorded, Names
from asyncpage.pipes.record import Dialect, unpack_plain

ACTORS = ("scheduler", "kv_manager")
"""Those that are recorded, by the numbers that records name them with."""

RECEIVED, TAKEN, BATCH_END, FIRED, RESUMED, SENT, DIED, STOPPED, ROOT = range(9)


class Record(NamedTuple):
    """One record. What a kind does not have is empty.

    `actor`: index in `ACTORS`. `time`: seconds on the engine's clock, of a cause. `name`: the message's class, or what
    an actor died of, or why recording stopped. `to`: whom a message was sent to. `timer`: which one, counted as set.
    `plain`: a received message's fields; `packed`: a sent one's, as msgpack. Of a root: `packed` is the block's
    pseudonym, `name` the salt's, `to` the adapter.
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


def reading_dialect(head: Head, names: Names | None = None) -> Dialect:
    """Reads the messages of a journal with this head, and writes today's the same way."""
    return journal_dialect(AsRecorded() if names is None else names, head.shapes)


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


# Behind its kind, each record has values of these types; made into a `Record` by the function beside them.
_KINDS: Mapping[int, tuple[tuple[type, ...], Callable[..., Record]]] = {
    RECEIVED: (
        (int, float, str, tuple),
        lambda actor, time, name, plain: Record(RECEIVED, actor, time, name, plain=plain),
    ),
    TAKEN: ((int, float), lambda actor, time: Record(TAKEN, actor, time)),
    BATCH_END: ((int, float), lambda actor, time: Record(BATCH_END, actor, time)),
    FIRED: ((int, float, int), lambda actor, time, timer: Record(FIRED, actor, time, timer=timer)),
    RESUMED: ((int, float), lambda actor, time: Record(RESUMED, actor, time)),
    SENT: (
        (int, str, str, bytes),
        lambda actor, to, name, packed: Record(SENT, actor, name=name, to=to, packed=packed),
    ),
    DIED: ((int, str), lambda actor, name: Record(DIED, actor, name=name)),
    STOPPED: ((str,), lambda name: Record(STOPPED, name=name)),
    ROOT: ((bytes, str, str), lambda packed, salt, adapter: Record(ROOT, name=salt, to=adapter, packed=packed)),
}


def _record(item: Any) -> Record:
    kind, *values = item if type(item) is tuple and item else (None,)
    types, make = _KINDS.get(kind, ((), Record)) if type(kind) is int else ((), Record)
    if not types or tuple(map(type, values)) != types:
        raise JournalError(f"the journal holds what is no record: {item!r:.60}")
    record = make(*values)
    if not 0 <= record.actor < len(ACTORS):
        raise JournalError(f"the journal names an actor {record.actor}")
    return record
