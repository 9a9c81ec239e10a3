"""Usage: prompts count once, completions always."""

from dataclasses import replace

from asyncpage.messages import Finish, RequestId
from asyncpage.server.generate.usage import Usage, total_usage


def finish(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Finish:
    return Finish(RequestId(1), "stop", prompt_tokens, completion_tokens, cached_tokens)


def test_a_prompt_counts_once_and_is_cached_as_far_as_all_its_choices_found_it() -> None:
    finishes = [finish(10, 1, 0), finish(10, 2, 8), finish(30, 4, 16), finish(30, 8, 16)]
    assert total_usage(finishes, 2) == Usage(prompt_tokens=40, completion_tokens=15, cached_tokens=16)
    assert total_usage(finishes, 2).to_json()["total_tokens"] == 55


def test_guesses_are_summed_over_choices_and_count_nowhere_else() -> None:
    finishes = [replace(finish(10, 9, 0), accepted_drafts=4, rejected_drafts=1) for _ in range(2)]
    usage = total_usage(finishes, 2).to_json()
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 2}
    assert (usage["completion_tokens"], usage["total_tokens"]) == (18, 28)
