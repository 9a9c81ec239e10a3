"""The prefix cache: whole prompts from it, and nobody's blocks but one's own tokens' whatever the hash."""

from __future__ import annotations

import asyncio
import random
from itertools import permutations

from tests.cases.answer import Answer
from tests.cases.macros import sweep
from tests.cases.model_folder import Model
from tests.cases.oracle import Oracle
from tests.cases.suite import Run, Suite, covers

BLOCK = 16


def _same(one: Answer, other: Answer) -> bool:
    """The same tokens, and log-probabilities as near as another batch shape leaves them."""
    pairs = zip(one.logprobs()["token_logprobs"], other.logprobs()["token_logprobs"], strict=True)
    return one.text() == other.text() and all(
        (left is None and right is None) or abs(left - right) < 1e-3 for left, right in pairs
    )


@covers("KVS-09")
async def test_a_prompt_that_is_cached_whole_gives_the_same_answer(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        salt = {"cache_salt": "KVS-09"}
        known = 0  # tokens that the prompt before has left in the cache
        for request in sweep(run.case.requests[0]):
            first, length = request["json"]["prompt"]["$range"][0], request["json"]["prompt"]["$range"][1] - 7
            assert first == 7
            fields = {**request["json"], **salt}
            cold = await run.client.post(request["path"], fields)
            assert cold.cached_tokens() >= min(known, length - 1) // BLOCK * BLOCK
            warm = [await run.client.post(request["path"], fields) for _ in range(2)]
            warm += await asyncio.gather(*(run.client.post(request["path"], fields) for _ in range(3)))
            for answer in warm:
                assert _same(answer, cold), length
                assert answer.cached_tokens() <= length - 1
            assert warm[0].cached_tokens() == length - 1 or warm[0].cached_tokens() % BLOCK == 0
            known = length
            if length % 7 == 0 or length % BLOCK in (0, 1):
                one = await run.client.post(request["path"], {**fields, "max_tokens": 1})
                again = await run.client.post(request["path"], {**fields, "max_tokens": 1})
                assert _same(one, again)
                echo = [await run.client.post(request["path"], {**fields, "echo": True}) for _ in range(2)]
                assert _same(*echo)
                assert len(echo[0].logprobs()["tokens"]) == length + 3


def blocks_of_four(count: int) -> list[list[int]]:
    """Distinct prompts of one block and a token, permutations, shifted windows and swapped pairs among them."""
    rng = random.Random(2)
    found = {(*one, 3) for one in permutations((10, 11, 12, 13))}
    found |= {(*window, 3) for window in zip(*(range(20 + shift, 60 + shift) for shift in range(4)), strict=True)}
    found |= {(a, b, b, a, 3) for a in range(100, 115) for b in range(100, 115)}
    while len(found) < count:
        found.add((*(rng.randrange(3, 500) for _ in range(4)), 3))
    prompts = [list(prompt) for prompt in found]
    rng.shuffle(prompts)
    return prompts


async def _no_cross_hit(run: Run, prompts: list[list[int]], at_once: int, seen: set[tuple[int, ...]]) -> None:
    """On first sight a prompt finds no more than it has in common with some prompt before it.

    The cache reuses single tokens, so what is found is bounded by a brute-force count, prompt by prompt. `seen`: every
    beginning of those before.
    """

    def shared(prompt: list[int]) -> int:
        return max((length for length in range(1, 5) if tuple(prompt[:length]) in seen), default=0)

    for start in range(0, len(prompts), at_once):
        batch = prompts[start : start + at_once]
        most = 0
        for prompt in batch:
            most += shared(prompt)
            seen.update(tuple(prompt[:length]) for length in range(1, 5))
        answer = await run.client.complete(prompt=batch, max_tokens=1, temperature=0, cache_salt="PFX-02")
        assert answer.cached_tokens() <= most


@covers("PFX-02")
async def test_no_prompt_finds_what_another_has_computed(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    async with suite.on(tiny) as run:
        count = 200_000 if suite.thorough else 4_000
        prompts = blocks_of_four(count)
        seen: set[tuple[int, ...]] = set()
        await _no_cross_hit(run, prompts[: count // 8], 1 if count < 10_000 else 16, seen)
        await _no_cross_hit(run, prompts[count // 8 :], 128, seen)
        for prompt in prompts[:50]:
            answer = await run.client.complete(prompt=prompt, max_tokens=4, temperature=0, return_token_ids=True,
                                               ignore_eos=True)  # fmt: skip
            oracle.check_greedy(prompt, answer.token_ids())


@covers("PFX-02")
async def test_answers_stay_right_when_every_block_has_the_same_hash(suite: Suite, tiny: Model, oracle: Oracle) -> None:
    """Tokens are compared on a hit, so a weak hash costs hits and never an answer."""
    async with suite.on(tiny, how={"program": "weak_hash_server.py"}) as run:
        prompts = [*blocks_of_four(80)[:40], *([7 + n, 8, 9, *range(40, 60)] for n in range(10))]
        for _ in range(2):
            answers = await asyncio.gather(
                *(
                    run.client.complete(
                        prompt=prompt, max_tokens=4, temperature=0, return_token_ids=True, ignore_eos=True
                    )
                    for prompt in prompts
                )
            )
            for prompt, answer in zip(prompts, answers, strict=True):
                oracle.check_greedy(prompt, answer.token_ids())


@covers("PFX-02", long=True)
async def test_the_hash_seed_of_a_process_changes_no_answer(suite: Suite, tiny: Model) -> None:
    texts = set()
    for seed in ("1", "2"):
        async with suite.on(tiny, how={"env": {"PYTHONHASHSEED": seed}}) as run:
            for _ in range(2):
                answer = await run.client.complete(prompt={"$range": [7, 60]}, max_tokens=20, temperature=0)
                texts.add(answer.text())
    assert len(texts) == 1
