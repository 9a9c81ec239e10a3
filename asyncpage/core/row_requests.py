"""Who lives in which row, as tuples of requests.

The running batch owns one: it tells who moves in, and asks for the requests of every step's rows.

INVARIANT: while the rows asked for are the same and nobody comes or goes, the answer is the very same tuple, which
readers further on recognise by identity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncpage.messages import EMPTY, Int32, RequestId


class RowRequests:
    """A column over `rows` rows; an empty row still holds the request that lived there last."""

    def __init__(self, rows: int) -> None:
        self._by_row: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._last: tuple[Int32, int, tuple[RequestId, ...]] = (EMPTY, -1, ())

    def put(self, row: int, request: RequestId) -> None:
        """A request moves into a row. The caller counts its membership up."""
        self._by_row[row] = request

    def of(self, rows: Int32, membership: int) -> tuple[RequestId, ...]:
        """Who lives in these rows. `membership`: how often rows have come and gone by now."""
        same_rows, same_membership, requests = self._last
        if membership != same_membership or not (same_rows is rows or np.array_equal(same_rows, rows)):
            requests = tuple(self._by_row.take(rows).tolist())
        self._last = (rows, membership, requests)
        return requests
