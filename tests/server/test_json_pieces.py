"""Pieces of JSON against the standard encoder."""

import json

from hypothesis import given
from hypothesis import strategies as st

from asyncpage.server.json_pieces import json_pieces

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


@given(VALUES, st.integers(0, 6))
def test_the_pieces_are_what_the_standard_encoder_writes(value: object, levels: int) -> None:
    assert "".join(json_pieces(value, levels)) == json.dumps(value)


def test_no_piece_of_an_answer_holds_more_than_one_token() -> None:
    entry = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": -1.0}]}
    answer = {"choices": [{"logprobs": {"content": [entry] * 1000}}], "prompt_logprobs": [None, {"5": {"rank": 1}}]}
    assert max(map(len, json_pieces(answer))) == len(json.dumps(entry))
