"""Tokens that may end a request, against the requests themselves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncpage.core.end_tokens import EndTokens

VOCABULARY = 6


@given(
    moves=st.lists(st.lists(st.integers(0, VOCABULARY + 1), max_size=3, unique=True), max_size=12),
    leave=st.lists(st.integers(0, 11), max_size=6),
    sampled=st.lists(st.integers(0, VOCABULARY - 1), max_size=5),
)
def test_a_token_is_found_exactly_while_a_request_runs_that_it_would_end(
    moves: list[list[int]], leave: list[int], sampled: list[int]
) -> None:
    ends = EndTokens(VOCABULARY)
    running = [tuple(tokens) for tokens in moves]
    for tokens in running:
        ends.add(tokens)
    for place in leave:
        if place < len(running):
            ends.remove(running.pop(place))
    wanted = [any(token in tokens for tokens in running) for token in sampled]
    column = np.array(sampled, dtype=np.int32)
    assert ends.among(column).tolist() == wanted
    assert ends.is_any_among(column) == any(wanted)
