"""Log-probabilities: their shapes, finite numbers, and bounded counts."""

from __future__ import annotations

import math

from tests.cases.model_folder import Model
from tests.cases.process_state import memory_bytes
from tests.cases.suite import Suite, covers

CAP = 20


@covers("LPB-01")
async def test_log_probabilities_have_the_shapes_of_the_api(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        plain, none_asked, three, unasked, streamed, completion = await run.table()
        for answer in (plain, none_asked):
            assert all(entry["top_logprobs"] == [] for entry in answer.logprobs()["content"])
        content = three.logprobs()["content"]
        assert len(content) == three.usage()["completion_tokens"] == 6
        assert b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace") == three.text()
        for entry in content:
            assert len(entry["top_logprobs"]) == 3
            assert entry["logprob"] <= 0
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            best = entry["top_logprobs"][0]
            assert (best["token"], best["logprob"]) == (entry["token"], entry["logprob"])  # greedy
        assert unasked.status == 400
        assert unasked.error["param"] == "top_logprobs"
        assert streamed.logprobs()["content"] == content
        chosen = completion.logprobs()
        assert [list(table) for table in chosen["top_logprobs"]] == [[token] for token in chosen["tokens"]]
        assert [list(table.values()) for table in chosen["top_logprobs"]] == [[p] for p in chosen["token_logprobs"]]
        unlikely = await run.client.complete(prompt="hello", logprobs=2, max_tokens=8, temperature=2, seed=5)
        for token, table in zip(unlikely.logprobs()["tokens"], unlikely.logprobs()["top_logprobs"], strict=True):
            assert token in table
            assert len(table) in (2, 3)


@covers("LPB-03")
async def test_masked_tokens_leave_the_answer_readable(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        # Every answer was read by a parser that takes neither NaN nor Infinity.
        whole, streamed, filtered = await run.table()
        assert filtered.status == 200
        masked = await run.client.complete(
            prompt="q", max_tokens=3, logprobs=5, allowed_token_ids=[7, 8], ignore_eos=True
        )
        for answer in (whole, streamed):
            assert answer.text() in ("yes", "no") or answer.finish() == "length"
        for answer in (whole, streamed, filtered, masked):
            for table in answer.logprobs()["top_logprobs"]:
                assert all(math.isfinite(value) and -10_000 < value <= 0 for value in table.values())
        assert all(len(table) <= 6 for table in masked.logprobs()["top_logprobs"])


@covers("LPB-05")
async def test_the_number_of_log_probabilities_has_a_cap_and_the_cap_is_cheap(suite: Suite, tiny: Model) -> None:
    async with suite.on(tiny) as run:
        for answer in await run.table():
            assert answer.status == 400
            assert answer.error["param"] in ("logprobs", "prompt_logprobs", "top_logprobs")
        for name in ("logprobs", "prompt_logprobs"):
            over = await run.client.complete(prompt="x", max_tokens=1, **{name: CAP + 1})
            assert over.status == 400
            assert str(CAP) in over.error["message"]
        run.growth = 200 << 20
        before = [memory_bytes(pid) for pid in run.server.family()]
        longest = {"prompt": {"$range": [3, 2049]}, "max_tokens": 1, "logprobs": CAP, "prompt_logprobs": CAP}
        answer = await run.client.complete(**longest)
        assert len(answer.json["choices"][0]["prompt_logprobs"]) == 2046
        after = [memory_bytes(pid) for pid in run.server.family()]
        assert all(now - was < 200 << 20 for now, was in zip(after, before, strict=True))
