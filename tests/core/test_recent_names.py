"""Names that were kept are the names that would be made."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpage.core.block_names import extend_chain, root_key, root_name
from asyncpage.core.recent_names import MOST, RecentNames

SIZE = 2
ROOTS = [root_name(root_key(SIZE)), root_name(root_key(SIZE, salt="another tenant"))]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_names_are_those_of_the_chain_whatever_came_before(seed: int, choice: int) -> None:
    dice = random.Random(seed)
    recent = RecentNames(SIZE)
    for _ in range(40):
        tokens = bytes(dice.randrange(choice) for _ in range(dice.randrange(4 * SIZE * 6)))
        root = dice.choice(ROOTS)
        assert recent.extend_chain(root, tokens) == extend_chain(root, tokens, SIZE)


def test_shared_blocks_have_the_very_same_names_as_the_last_prompt_that_began_so() -> None:
    recent = RecentNames(SIZE)
    shared = bytes(4 * SIZE * 3)
    first = recent.extend_chain(ROOTS[0], shared + b"a" * 4 * SIZE)
    second = recent.extend_chain(ROOTS[0], shared + b"b" * 4 * SIZE)
    assert [one is other for one, other in zip(first, second, strict=True)] == [True, True, True, False]


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    recent = RecentNames(SIZE)
    prompts = [number.to_bytes(4 * SIZE, "little") for number in range(MOST + 1)]
    names = [recent.extend_chain(ROOTS[0], prompt)[0] for prompt in prompts]
    assert len(recent) == MOST
    assert recent.extend_chain(ROOTS[0], prompts[-1])[0] is names[-1]
    assert recent.extend_chain(ROOTS[0], prompts[0])[0] is not names[0]
