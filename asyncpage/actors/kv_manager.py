"""The KV manager: owns the block tables and settles every step over memory.

The scheduler sends `Reserve` and gets `Granted`; it sends `Rewind` when no step is in flight and no row exists any
more. Everything decided here is `core/settlement.py`.

INVARIANT: blank + cached + referenced blocks = all blocks, after every message.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncpage.actors.base import Actor
from asyncpage.core.block_tables import Ledger
from asyncpage.core.settlement import Memory, settle
from asyncpage.errors import UnknownMessage
from asyncpage.messages import Reserve, Rewind
from asyncpage.pipes.mailbox import Address


class KvManager(Actor):
    """Keeps the tables; one `Granted` for each `Reserve`."""

    name = "kv_manager"

    def __init__(self, memory: Memory, scheduler: Address) -> None:
        self._memory = memory
        self._scheduler = scheduler

    def receive(self, message: object) -> None:
        match message:
            case Reserve():
                granted, has_unnamed = settle(self._memory, message)
                self._scheduler.send(granted)
                if has_unnamed:
                    self._memory.publish(message)
            case Rewind():
                self._memory.rewind(forget=message.forget)
            case _:
                raise UnknownMessage(self, message)

    def ledger(self) -> Ledger:
        """Where every block is at this moment, counted afresh."""
        return self._memory.tables.ledger()

    def stats(self) -> Mapping[str, float]:
        pool = self._memory.tables.pool  # its own counts: `ledger` looks at every block, which would hold up a step
        return {
            "blocks_total": pool.total,
            "blocks_blank": pool.free - pool.cached,
            "blocks_cached": pool.cached,
            "blocks_referenced": pool.total - pool.free,
        }
