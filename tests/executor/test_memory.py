"""How many blocks a pool gets: against the arithmetic of what it must hold."""

from dataclasses import replace

import pytest

from asyncpage.errors import UsageError
from asyncpage.executor import memory
from asyncpage.executor.memory import PoolDemand

MIB = 1024**2
DEMAND = PoolDemand(block_bytes=MIB, block_size=16, groups=1, max_model_len=100, max_num_seqs=8)


def test_by_default_a_pool_takes_its_share_of_what_is_free() -> None:
    assert memory.pool_blocks(DEMAND, 40 * MIB) == 20


def test_a_pool_is_no_larger_than_all_rows_can_fill() -> None:
    # 100 tokens are 7 blocks; 8 rows of them and block 0.
    assert memory.pool_blocks(DEMAND, 10**6 * MIB) == 8 * 7 + 1


def test_one_full_request_may_take_more_than_the_share() -> None:
    assert memory.pool_blocks(DEMAND, 8 * MIB) == 8
    assert memory.pool_blocks(replace(DEMAND, groups=2, max_num_seqs=1), 15 * MIB) == 15


def test_too_little_for_one_full_request_is_told_with_numbers_and_a_flag() -> None:
    with pytest.raises(UsageError, match=r"one request of 100 tokens needs 0\.01 GiB.*--max-model-len"):
        memory.pool_blocks(DEMAND, 8 * MIB - 1)


def test_a_size_that_the_user_gives_is_taken_as_it_is() -> None:
    assert memory.pool_blocks(replace(DEMAND, explicit_blocks=9), 100 * MIB) == 9
    assert memory.pool_blocks(replace(DEMAND, explicit_bytes=12 * MIB + 5), 100 * MIB) == 12
    with pytest.raises(UsageError, match="--num-kv-blocks"):
        memory.pool_blocks(replace(DEMAND, explicit_blocks=101), 100 * MIB)


def test_a_given_pool_that_holds_no_full_request_is_refused_or_shortens_the_context_when_nobody_set_it() -> None:
    small = replace(DEMAND, explicit_blocks=4)
    with pytest.raises(UsageError, match="4 blocks does not hold one request of 100 tokens, which needs 8"):
        memory.pool_blocks(small, 100 * MIB)
    assert small.shortened().max_model_len == 48
    assert memory.pool_blocks(small.shortened(), 100 * MIB) == 4
    assert replace(small, groups=2).shortened().max_model_len == 16
    assert replace(DEMAND, explicit_blocks=10**6).shortened() == replace(DEMAND, explicit_blocks=10**6)
    assert DEMAND.shortened() is DEMAND


def test_a_model_is_refused_before_loading_when_weights_and_one_request_do_not_fit() -> None:
    weights = 50 * MIB
    needed = weights + 8 * MIB + memory.WORKING_BYTES  # 100 tokens are 7 blocks, and there is block 0
    memory.check_model(weights, DEMAND, available=needed)
    with pytest.raises(UsageError, match=r"0\.05 GiB of weights, 0\.01 GiB for the KV cache of 100 tokens.*--max"):
        memory.check_model(weights, DEMAND, available=needed - 1)
    memory.check_model(weights, replace(DEMAND, max_model_len=90), available=needed - 1)


def test_a_pool_that_the_user_asked_for_counts_as_it_is() -> None:
    asked = replace(DEMAND, explicit_bytes=100 * MIB + 5)
    memory.check_model(0, asked, available=100 * MIB + memory.WORKING_BYTES)
    with pytest.raises(UsageError, match=r"0\.10 GiB for the KV pool asked for.*--num-kv-blocks or --kv-cache-bytes"):
        memory.check_model(1, asked, available=100 * MIB + memory.WORKING_BYTES)
