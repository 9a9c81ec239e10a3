"""Whole outputs put together from parts that came in any mixture of choices."""

import math

import pytest

from asyncpage.messages import Finish, RequestId
from asyncpage.outputs import Part, TokenLogprob, gather, token_logprobs


def finish(choice: int) -> Finish:
    return Finish(RequestId(choice + 1), "length", 7, 2, 4)


def entry(token: int) -> TokenLogprob:
    return TokenLogprob(token, str(token), b"", -1.0, 1, ())


def test_each_choice_gets_its_own_parts_in_their_order() -> None:
    parts = [
        Part(1, "c", (3,), (entry(3),)),
        Part(0, "a", (1,), (entry(1),), prompt_logprobs=(entry(9),)),
        Part(0, "b", (2,), (entry(2),)),
        Part(0, "", (), finish=finish(0)),
        Part(1, "d", (4,), (entry(4),), finish=finish(1)),
    ]
    output = gather(parts, 2, has_logprobs=True, has_prompt_logprobs=True)
    assert output.text == "ab"
    assert [(o.index, o.text, o.token_ids, o.finish_reason) for o in output.outputs] == [
        (0, "ab", (1, 2), "length"),
        (1, "cd", (3, 4), "length"),
    ]
    assert [[e.token for e in o.logprobs or ()] for o in output.outputs] == [[1, 2], [3, 4]]
    assert output.prompt_logprobs == (entry(9),)
    assert (output.prompt_tokens, output.cached_tokens) == (7, 4)


def test_logprobs_that_nobody_asked_for_are_none_and_not_empty() -> None:
    output = gather([Part(0, "", (), finish=finish(0))], 1, has_logprobs=False, has_prompt_logprobs=False)
    assert output.outputs[0].logprobs is None
    assert output.prompt_logprobs is None


def test_a_choice_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="choice 0 has not finished"):
        gather([Part(0, "a", (1,))], 1, has_logprobs=False, has_prompt_logprobs=False)


class Letters:
    def token_text(self, id: int) -> str:
        return "" if id < 0 else chr(id)

    def token_bytes(self, id: int) -> bytes:
        return self.token_text(id).encode()

    def whole_text(self, data: bytes) -> str:
        return data.decode(errors="replace")


def test_entries_become_values_with_their_texts_and_without_what_cannot_be() -> None:
    entries = [(-1, None, 0), (97, -0.5, 2, 98, 97, 99, -1, -0.25, -0.5, -math.inf, 0.0)]
    assert token_logprobs(entries, Letters()) == (
        TokenLogprob(-1, "", b"", None, 0, ()),
        TokenLogprob(97, "a", b"a", -0.5, 2, ((98, "b", b"b", -0.25), (97, "a", b"a", -0.5))),
    )
