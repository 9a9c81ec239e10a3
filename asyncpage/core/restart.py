"""How long to wait before something that died is started again.

Asked by the supervisor for actors and by the executor's near end for its process.

INVARIANT: the wait never shrinks as losses in a row add up, and never passes `LONGEST_S`.
"""

from __future__ import annotations

LONGEST_S = 8.0  # a client that waits for a restart should not wait much longer than the load itself takes


def backoff_s(losses: int) -> float:
    """Seconds to wait after the `losses`-th loss in a row (from 1): 0, 0.5, 1, 2, 4, then `LONGEST_S`.

    The first restart is at once: most losses are single ones, and streams are waiting.
    """
    if losses <= 1:
        return 0.0
    return min(LONGEST_S, 0.5 * 2.0 ** min(losses - 2, 10))
