"""Tiers in the whole house: blocks leave the pool and come back, and every token is still the closed form's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.sampling import SamplingParams
from asyncpage.messages import Follow, Handshake, LayerGroup, RequestOptions
from asyncpage.testing.house import ToyHouse
from asyncpage.testing.toy_archive import ToyFiles
from asyncpage.testing.toy_runner import toy_handshake, toy_tokens

FULL = (LayerGroup("full", 0, 1),)
MIXED = (LayerGroup("full", 0, 1), LayerGroup("window", 6, 1))
GREEDY = SamplingParams(max_tokens=5)
POISON = 96  # the last token id of the toy's vocabulary


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(POISON), k=length)


def expected(handshake: Handshake, prompt: Sequence[int], count: int) -> list[int]:
    return toy_tokens(prompt, count, handshake.vocab_size, windows=[group.window for group in handshake.groups])


def serve(house: ToyHouse, *prompts: Sequence[int], first: int = 1) -> list[int]:
    """One after another; how many tokens of each were not computed."""
    cached = []
    for number, prompt in enumerate(prompts, start=first):
        request = house.admit(number, prompt, GREEDY)
        house.run()
        assert house.outcomes.tokens[request] == expected(house.handshake, prompt, 5)
        cached.append(house.outcomes.cached[request])
    return cached


def is_conserved(house: ToyHouse) -> bool:
    ledger = house.kv_manager.ledger()
    return ledger.blank + ledger.cached + ledger.referenced == ledger.total


@pytest.mark.parametrize("index", [PrefixChain, PrefixTree])
@pytest.mark.parametrize("windows", [(6,), (3, 9), (1,)])
def test_a_model_of_windows_alone_loads_what_they_reach(windows: tuple[int, ...], index: type[PrefixIndex]) -> None:
    groups = tuple(LayerGroup("window", window, 1) for window in windows)
    handshake = toy_handshake(blocks=1 + 12 * len(groups), groups=groups)
    house = ToyHouse(handshake, index=index, slots=100)
    prompts = [prompt_of(seed, 41) for seed in range(4)]
    serve(house, *prompts)
    assert serve(house, *prompts, *prompts, first=5) == [40] * 8
    assert (house.tables.tier is not None and house.tables.tier.stats()["blocks_loaded"] > 0) == (windows != (1,))
    assert is_conserved(house)


@pytest.mark.parametrize("groups", [FULL, MIXED], ids=["full", "full and window"])
@pytest.mark.parametrize("index", [PrefixChain, PrefixTree])
def test_what_was_evicted_comes_back_from_the_host(groups: tuple[LayerGroup, ...], index: type[PrefixIndex]) -> None:
    handshake = toy_handshake(blocks=1 + 14 * len(groups), groups=groups)
    house = ToyHouse(handshake, index=index, slots=100)
    a, b = prompt_of(1, 41), prompt_of(2, 41)
    # 41 tokens and 4 that are computed behind them: 11 blocks; the second prompt leaves 3 of the first one's.
    assert serve(house, a, b, a, b) == [0, 0, 40, 40]
    assert is_conserved(house)


def test_without_tiers_it_is_computed_again() -> None:
    house = ToyHouse(toy_handshake(blocks=15))
    a, b = prompt_of(1, 41), prompt_of(2, 41)
    assert serve(house, a, b, a)[2] < 40


@pytest.mark.parametrize("slots", [4, 12, 100])
@pytest.mark.parametrize("groups", [FULL, MIXED], ids=["full", "full and window"])
def test_a_restarted_house_starts_warm(groups: tuple[LayerGroup, ...], slots: int) -> None:
    handshake, files = toy_handshake(blocks=60, groups=groups), ToyFiles()
    a = prompt_of(1, 41)
    serve(ToyHouse(handshake, slots=slots, files=files), a)
    assert len({label.name for label in files.blocks}) == 11
    house = ToyHouse(handshake, slots=slots, files=files)
    house.run()
    # Everything, or what there are slots for: 10 blocks, and in the window's group the 2 that the next token sees.
    blocks = min(10, slots if len(groups) == 1 else slots - 2)
    assert serve(house, a) == [4 * blocks]
    assert serve(house, a, first=2) == [40]


def test_a_lost_executor_leaves_the_host_tier() -> None:
    house = ToyHouse(toy_handshake(blocks=60), slots=100)
    a = prompt_of(1, 41)
    serve(house, a)
    house.lose_executor()
    assert serve(house, a, first=2) == [40]


def test_a_file_that_cannot_be_read_is_computed_and_forgotten() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a = prompt_of(1, 41)
    serve(ToyHouse(handshake, slots=50, files=files), a)
    third = list(files.blocks)[-3]  # tail first: the third block of the prompt
    house = ToyHouse(handshake, slots=50, files=files)
    house.run()
    contents = files.blocks.pop(third)
    assert serve(house, a) == [8]
    assert third in files.blocks  # computed and stored anew
    assert (files.blocks[third][0] == contents[0]).all()


def test_a_broken_disk_costs_nothing_but_its_use() -> None:
    handshake, files = toy_handshake(blocks=15), ToyFiles(is_broken=True)
    house = ToyHouse(handshake, slots=30, files=files)
    a, b = prompt_of(1, 41), prompt_of(2, 41)
    assert serve(house, a, b, a) == [0, 0, 40]
    assert not files.blocks


def test_requests_that_want_the_same_files_wait_together_and_others_pass() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a = prompt_of(1, 41)
    serve(ToyHouse(handshake, slots=50, files=files), a)
    house = ToyHouse(handshake, slots=50, files=files)
    house.run()
    twins = [house.admit(number, [*a, number], GREEDY) for number in (1, 2)]
    house.turn("scheduler")
    house.turn("kv_manager")
    stranger = house.admit(3, prompt_of(5, 9), GREEDY)
    house.turn("scheduler")
    house.turn("kv_manager")
    house.turn("scheduler")
    assert [new.request for step in house.boxes["executor"].messages for new in step.added] == [stranger]
    house.run()
    assert [house.outcomes.cached[twin] for twin in twins] == [40, 40]
    assert sum(len(step.loads) for step in house.steps) == 10
    for twin in twins:
        assert house.outcomes.tokens[twin] == expected(handshake, [*a, twin], 5)


def test_who_waits_for_files_may_leave() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a = prompt_of(1, 41)
    serve(ToyHouse(handshake, slots=50, files=files), a)
    house = ToyHouse(handshake, slots=50, files=files)
    house.run()
    request = house.admit(1, a, GREEDY)
    house.turn("scheduler")
    house.turn("kv_manager")
    house.cancel(1)
    house.run()
    assert house.outcomes.ends[request].reason == "abort"
    assert serve(house, a, first=2) == [40]


def test_another_salt_finds_nothing_and_a_request_may_keep_out_of_the_tiers() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a, b = prompt_of(1, 41), prompt_of(2, 41)
    house = ToyHouse(handshake, slots=50, files=files)
    house.admit(1, b, GREEDY, RequestOptions(use_cache=False))
    house.run()
    assert not files.blocks
    serve(house, a, first=2)
    again = ToyHouse(handshake, slots=50, files=files)
    again.run()
    salted = again.admit(1, a, GREEDY, RequestOptions(cache_salt="other"))
    plain = again.admit(2, a, GREEDY, RequestOptions(use_cache=False))
    again.run()
    assert (again.outcomes.cached[salted], again.outcomes.cached[plain]) == (0, 0)


def test_a_reset_leaves_nothing_anywhere() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a = prompt_of(1, 41)
    house = ToyHouse(handshake, slots=50, files=files)
    serve(house, a)
    house.memory.forget_prefixes()
    house.kv_manager.batch_end()
    house.run()
    assert not files.blocks
    assert serve(house, a, first=2) == [0]
    assert serve(house, a, first=3) == [40]


def test_an_idle_house_comes_to_rest() -> None:
    """Steps without rows carry what is left to save, and then no more."""
    house = ToyHouse(toy_handshake(blocks=60), slots=3)
    serve(house, prompt_of(1, 41))
    assert sum(len(step.saves) for step in house.steps) == 11
    assert any(not len(step.rows) for step in house.steps)
    assert max(len(step.saves) for step in house.steps) <= 8
    steps = len(house.steps)
    house.run()
    assert len(house.steps) == steps


@pytest.mark.parametrize("seed", [*range(24), 1097])
def test_any_traffic_and_any_fault_gives_the_tokens_of_the_closed_form(seed: int) -> None:
    chance = random.Random(seed)
    groups = chance.choice((FULL, MIXED))
    handshake = toy_handshake(blocks=1 + chance.choice((16, 24, 40)) * len(groups), groups=groups)
    files = ToyFiles(most=chance.choice((10, 1000)))
    slots = chance.choice((2, 9, 60))
    families = [prompt_of(number, 60) for number in range(4)]
    for life in range(2):
        house = ToyHouse(
            handshake,
            rows=4,
            budget_tokens=chance.choice((7, 32)),
            depth=chance.choice((1, 2)),
            index=chance.choice((PrefixChain, PrefixTree)),
            slots=slots,
            files=chance.choice((files, files, None)),
            poison=POISON,
        )
        wanted, losses = {}, 0
        for number in range(25):
            family = chance.choice(families)
            prompt = [
                *family[: chance.choice((4, 17, 32, 40))],
                *prompt_of(chance.randrange(9), chance.randrange(1, 8)),
            ]
            count = chance.randrange(1, 9)
            wanted[house.admit(number, prompt, SamplingParams(max_tokens=count))] = (prompt, count)
            for _ in range(chance.randrange(40)):
                house.turn(chance.choice(list(house.boxes)))
            fault = chance.randrange(20)
            if fault == 0 and losses < 2:  # after three in a row somebody is to blame
                losses += 1
                house.lose_executor()
            elif fault == 1:
                house.cancel(number)
            elif fault == 2:
                files.is_broken = not files.is_broken
            elif fault == 3:
                house.memory.forget_prefixes()
            elif fault == 4:  # fails its step, and everybody else's in it
                house.admit(100 + number, [*family[:20], POISON], GREEDY)
            assert is_conserved(house)
        house.run()
        for request, (prompt, count) in wanted.items():
            end = house.outcomes.ends[request]
            tokens = house.outcomes.tokens[request]
            true = expected(handshake, prompt, count)
            assert tokens == true[: len(tokens)]
            if POISON in true[:-1]:  # an answer may bring it too
                continue
            assert end.reason == "abort" or (end.reason, len(tokens)) == ("length", count), (life, end)
        assert house.tier is not None
        assert house.tier.slots_in_use <= slots
        assert not house.tier.can_save or slots == 2


def test_followers_hear_where_blocks_are() -> None:
    """A follower that adds up events knows at each moment which names lie where."""
    handshake, files = toy_handshake(blocks=15, groups=FULL), ToyFiles(most=14)
    house = ToyHouse(handshake, slots=13, files=files)
    house.kv_manager.receive(Follow(frontend=0, is_on=True))
    places: dict[str, set[bytes]] = {"gpu": set(), "host": set(), "disk": set()}
    known: dict[bytes, tuple[bytes, bytes]] = {}
    for number in range(6):
        serve(house, prompt_of(number % 3, 41), first=number)
        events = [event for news in house.heard.messages for event in news.events]
        house.heard.messages.clear()
        for event in events:
            if event.kind == "stored":
                assert event.name not in places[event.medium]
                places[event.medium].add(event.name)
                assert known.setdefault(event.name, (event.parent, event.tokens)) == (event.parent, event.tokens)
                assert event.block_size == 4
            else:
                places[event.medium].remove(event.name)
        assert house.tier is not None
        assert len(places["host"]) == house.tier.slots_in_use
        assert places["disk"] == {label.name for label in files.blocks}
        assert 0 < len(places["gpu"]) <= len(house.tables.index)  # which has tails without a name, too
    assert sum(parent == b"" for parent, _ in known.values()) == 3


def test_a_disk_that_hangs_costs_ten_seconds_once_and_serves_again_when_it_answers() -> None:
    handshake, files = toy_handshake(blocks=60), ToyFiles()
    a, b, c = prompt_of(1, 41), prompt_of(2, 41), prompt_of(3, 41)
    serve(ToyHouse(handshake, slots=40, files=files), a, b, c)
    house = ToyHouse(handshake, slots=40, files=files)
    house.run()
    archive = house.boxes.pop("archive")  # nobody reads it any more
    waits = house.admit(1, a, GREEDY)
    house.run()
    assert waits not in house.outcomes.ends
    house.clock.advance(9.9)
    house.run()
    assert waits not in house.outcomes.ends
    house.clock.advance(0.1)
    house.kv_manager.batch_end()  # as follows a timer
    house.run()
    assert house.outcomes.tokens[waits] == expected(handshake, a, 5)
    assert house.outcomes.cached[waits] == 0
    assert house.clock.armed() == ()
    assert serve(house, b, first=2) == [0]  # without waiting
    house.boxes["archive"] = archive
    house.run()
    assert serve(house, c, first=3) == [40]  # from files
    assert is_conserved(house)
