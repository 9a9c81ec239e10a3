"""Log-probabilities: the three shapes, held against the API's published examples and what evaluators compute."""

import json
import math

from asyncpage.server.generate.logprob_shape import FLOOR, CompletionLogprobs, chat_logprobs, prompt_logprobs

TEXTS = {1: b"a", 2: b"b", 3: b"c", 5: b"He", 6: b"llo", 7: b"y", 9: b"!", 200: b"\xe4", 201: b"\xe5"}


class Table:
    """What the tokens of these tests look like."""

    def __init__(self, texts: dict[int, bytes]) -> None:
        self.texts = texts

    def token_text(self, id: int) -> str:
        return self.texts[id].decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return self.texts[id]

    def whole_text(self, data: bytes) -> str:
        return data.decode(errors="replace")


TABLE = Table(TEXTS)
FIRST = (5, None, 0)
SECOND = (6, -0.5, 1, 6, 7, -0.5, -1.5)
UNLIKELY = (9, -7.25, 40, 6, 7, -0.5, -1.5)


def test_chat_entries_have_the_published_fields() -> None:
    assert chat_logprobs([SECOND], 1, TABLE) == {
        "content": [
            {
                "token": "llo",
                "logprob": -0.5,
                "bytes": [108, 108, 111],
                "top_logprobs": [{"token": "llo", "logprob": -0.5, "bytes": [108, 108, 111]}],
            }
        ],
        "refusal": None,
    }
    assert chat_logprobs([SECOND], 0, TABLE)["content"][0]["top_logprobs"] == []


def test_completion_entries_are_columns_and_the_first_prompt_token_has_none() -> None:
    assert CompletionLogprobs(2, TABLE).take([FIRST, SECOND]) == {
        "tokens": ["He", "llo"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"llo": -0.5, "y": -1.5}],
        "text_offset": [0, 2],
    }


def test_the_chosen_token_is_among_the_alternatives_with_the_very_same_number() -> None:
    for most in (0, 1, 2):
        shown = CompletionLogprobs(most, TABLE).take([UNLIKELY])
        assert shown["top_logprobs"][0]["!"] == shown["token_logprobs"][0] == -7.25
        assert len(shown["top_logprobs"][0]) == most + 1


def test_a_token_counts_as_greedy_exactly_when_it_is_the_likeliest() -> None:
    # Two tokens can have the same text; the comparison that evaluators make must not be fooled by it.
    half = (200, -2.0, 2, 201, 200, -1.0, -2.0)
    shown = CompletionLogprobs(2, TABLE).take([half])
    assert shown["top_logprobs"] == [{"�": -2.0, "token_id:201": -1.0}]
    assert max(shown["top_logprobs"][0].values()) != shown["token_logprobs"][0]


def test_offsets_count_whole_characters_across_pieces() -> None:
    table = Table(dict(enumerate([b"a", b"\xf0\x9f", b"\x98\x80", b"b", b""])))
    tokens = [(i, -1.0, 1) for i in table.texts]
    whole = CompletionLogprobs(0, table).take(tokens)["text_offset"]
    pieces = CompletionLogprobs(0, table)
    assert whole == [0, 1, 1, 2, 3]
    assert [pieces.take([token])["text_offset"][0] for token in tokens] == whole


def test_infinities_never_reach_json() -> None:
    masked = (1, -math.inf, 9, 2, 3, -1, -0.1, -math.inf, 0.0)
    for shown in (
        chat_logprobs([masked], 5, TABLE),
        CompletionLogprobs(5, TABLE).take([masked]),
        prompt_logprobs([masked], 5, TABLE),
    ):
        json.dumps(shown, allow_nan=False)
        assert "-9999.0" in json.dumps(shown)
        assert '"c"' not in json.dumps(shown)
    assert FLOOR == -9999.0


def test_prompt_entries_are_by_token_id() -> None:
    assert prompt_logprobs([FIRST, UNLIKELY], 1, TABLE) == [
        None,
        {
            "9": {"logprob": -7.25, "rank": 40, "decoded_token": "!"},
            "6": {"logprob": -0.5, "rank": 1, "decoded_token": "llo"},
        },
    ]
