"""Adapters in a running engine: PEFT's own answers in a mixed batch, and nothing lost while they come and go.

Where many are made, the oracle is the closed form: the model itself with W + s B A in the place of each W.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from asyncpage import LLM
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.errors import ModelError, RequestError, UsageError
from asyncpage.messages import Finish, RequestOptions, TokenPrompt
from tests.cases import adapters as by_hand
from tests.e2e.oracle import Oracle, check_idle, greedy
from tests.e2e.peft_adapters import KINDS, make_adapter

Oracles = Mapping[str | None, Oracle]


def prompt_of(number: int, length: int = 0) -> list[int]:
    return [(number * 31 + place * place) % 500 + 3 for place in range(length or 5 + number % 23)]


async def ask(
    engine: AsyncEngine, prompt: Sequence[int], sampling: SamplingParams, adapter: str | None
) -> tuple[list[int], Finish]:
    ids = TokenPrompt(torch.tensor(prompt, dtype=torch.int32).numpy().tobytes())
    tokens: list[int] = []
    finish = None
    async for part in engine.generate(ids, sampling, adapter=adapter):
        tokens += part.token_ids
        finish = part.finish
    assert finish is not None
    return tokens, finish


def config_of(model: Path, **settings: Any) -> EngineConfig:
    plain = {"placement": "inproc", "dtype": "float32", "cpu_threads": 1, "num_kv_blocks": 400, "max_num_seqs": 32}
    return EngineConfig(model=str(model), **{**plain, "enable_lora": True, **settings})


# --- against PEFT -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eight(tiny_model: Path, tiny_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracles]:
    """Eight adapters in folders of their names, each with PEFT's model; and the model itself."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {
        name: make_adapter(tiny_model, folder / name, seed, **settings)
        for seed, (name, settings) in enumerate(KINDS.items())
    }
    return folder, {None: tiny_oracle, **made}


async def test_eight_adapters_and_the_base_in_one_batch_of_32_answer_as_each_alone_and_as_peft(
    tiny_model: Path, eight: tuple[Path, Oracles]
) -> None:
    folder, oracles = eight
    lora = tuple(f"{name}={folder / name}" for name in KINDS)
    engine = await AsyncEngine.start(config_of(tiny_model, lora=lora))
    try:
        names = [name for name, _ in zip(itertools.cycle(oracles), range(32), strict=False)]
        asked = [(engine, prompt_of(number), greedy(12), name) for number, name in enumerate(names)]
        mixed = await asyncio.gather(*itertools.starmap(ask, asked))
        for (_, prompt, _, name), (tokens, _) in zip(asked, mixed, strict=True):
            oracles[name].check(prompt, tokens)
        for one, (tokens, _) in list(zip(asked, mixed, strict=True))[:9]:
            assert (await ask(*one))[0] == tokens
        same = [(await ask(engine, prompt_of(1), greedy(12), name))[0] for name in oracles]
        assert len(set(map(tuple, same))) == len(oracles)  # each of them does change the answer
        await check_idle(engine)
    finally:
        await engine.stop()


async def test_more_adapters_than_slots_in_a_pool_that_preempts_answer_as_peft(
    tiny_model: Path, eight: tuple[Path, Oracles]
) -> None:
    folder, oracles = eight
    lora = tuple(f"{name}={folder / name}" for name in KINDS)
    few = {"max_loras": 2, "num_kv_blocks": 20, "block_size": 4, "whole_prompt_admission": False, "watermark": 0.0}
    few["itl_target_ms"] = 0.0  # or a slow machine computes prompts so slowly that none is preempted
    engine = await AsyncEngine.start(config_of(tiny_model, lora=lora, max_num_batched_tokens=48, **few))
    try:
        names = [name for name, _ in zip(itertools.cycle(oracles), range(18), strict=False)]
        asked = [(engine, prompt_of(number, 12), greedy(24), name) for number, name in enumerate(names)]
        for (_, prompt, _, name), (tokens, _) in zip(
            asked, await asyncio.gather(*itertools.starmap(ask, asked)), strict=True
        ):
            oracles[name].check(prompt, tokens)
        assert (await engine.ping(60))["scheduler"]["preemptions"] > 0
    finally:
        await engine.stop()


def test_a_script_names_its_adapter(tiny_model: Path, eight: tuple[Path, Oracles]) -> None:
    folder, oracles = eight
    with LLM(str(tiny_model), cpu_threads=1, dtype="float32", lora=(f"first={folder / 'large'}",)) as llm:
        llm.load_adapter("second", str(folder / "stable"))
        for name, kind in (("first", "large"), ("second", "stable")):
            (output,) = llm.generate(prompt_of(3), greedy(8), adapter=name, progress=False)
            oracles[kind].check(prompt_of(3), output.outputs[0].token_ids)
        llm.unload_adapter("second")
        with pytest.raises(RequestError, match="second"):
            llm.generate("x", greedy(1), adapter="second", progress=False)


# --- against the closed form ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def merged(tiny_model: Path, tiny_oracle: Oracle) -> dict[int, Oracle]:
    """By the seed of an adapter: the model with that adapter in its weights."""
    weights = {name: tensor.double().numpy() for name, tensor in tiny_oracle.model.state_dict().items()}
    found = {}
    for seed in range(4):
        model = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
        changed = by_hand.merged(weights, by_hand.tensors(seed))
        model.load_state_dict({name: torch.from_numpy(array) for name, array in changed.items()})
        found[seed] = Oracle(model)
    return found


def write(folder: Path, seed: int) -> str:
    if folder.exists():
        shutil.rmtree(folder)
    return str(by_hand.write_adapter(folder, by_hand.tensors(seed)))


async def test_no_kv_of_another_adapter_is_found_and_that_of_equal_files_is(
    tiny_model: Path, tiny_oracle: Oracle, merged: Mapping[int, Oracle], tmp_path: Path
) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model))
    prompt = prompt_of(4, 40)
    try:
        _, finish = await ask(engine, prompt, greedy(8), None)
        assert finish.cached_tokens == 0
        for seed, is_known in ((0, False), (1, False), (0, True), (1, True)):
            # The same name and folder, with other files or with those of before.
            await engine.adapters.load("a", write(tmp_path / "a", seed))
            tokens, finish = await ask(engine, prompt, greedy(8), "a")
            merged[seed].check(prompt, tokens)
            assert (finish.cached_tokens > 0) == is_known
        engine.adapters.unload("a")
        tokens, finish = await ask(engine, prompt, greedy(8), None)
        tiny_oracle.check(prompt, tokens)
        assert finish.cached_tokens > 0
    finally:
        await engine.stop()


async def test_what_runs_goes_on_when_its_adapter_is_unloaded_replaced_or_deleted(
    tiny_model: Path, merged: Mapping[int, Oracle], tmp_path: Path
) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model))
    try:
        await engine.adapters.load("a", write(tmp_path / "a", 0))
        await ask(engine, prompt_of(1), greedy(1), "a")
        running = asyncio.ensure_future(ask(engine, prompt_of(2), greedy(100), "a"))
        await asyncio.sleep(0)
        shutil.rmtree(tmp_path / "a")
        engine.adapters.unload("a")
        with pytest.raises(RequestError) as refusal:
            await ask(engine, prompt_of(2), greedy(1), "a")
        assert refusal.value.failure.status == 404
        await engine.adapters.load("a", write(tmp_path / "b", 1))
        (new, _), (old, _) = await asyncio.gather(ask(engine, prompt_of(2), greedy(100), "a"), running)
        merged[1].check(prompt_of(2), new)
        merged[0].check(prompt_of(2), old)
    finally:
        await engine.stop()


async def test_files_that_are_gone_before_the_first_request_fail_it_alone(
    tiny_model: Path, tiny_oracle: Oracle, tmp_path: Path
) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model))
    try:
        folder = write(tmp_path / "a", 0)
        await engine.adapters.load("a", folder)
        shutil.rmtree(folder)
        others = asyncio.gather(*(ask(engine, prompt_of(number), greedy(40), None) for number in range(4)))
        with pytest.raises(RequestError, match="the adapter cannot be read") as failure:
            await ask(engine, prompt_of(2), greedy(4), "a")
        assert failure.value.failure.code == "row_failed"
        for number, (tokens, _) in enumerate(await others):
            tiny_oracle.check(prompt_of(number), tokens)
        write(tmp_path / "a", 0)
        assert len((await ask(engine, prompt_of(2), greedy(4), "a"))[0]) == 4
    finally:
        await engine.stop()


async def _cycles(engine: AsyncEngine, folders: Sequence[str], oracles: Mapping[Any, Oracle], count: int) -> None:
    """Two names come and go over `count` loads, while requests of both and of the base run all the time."""
    held: dict[str, int] = {}  # the seed that a name stands for
    running: deque[asyncio.Future[None]] = deque()

    async def one(number: int, name: str | None) -> None:
        seed, prompt, length = held.get(name or ""), prompt_of(number % 40), 6 + number % 5
        tokens, finish = await ask(engine, prompt, greedy(length), name)
        oracles[seed].check(prompt, tokens)
        assert (finish.reason, len(tokens)) == ("length", length)

    for cycle in range(count):
        name, seed = "xy"[cycle % 2], cycle % len(folders)
        await engine.adapters.load(name, folders[seed])
        held[name] = seed
        for place, adapter in enumerate((None, *held, name)):
            running.append(asyncio.ensure_future(one(4 * cycle + place, adapter)))
        await asyncio.sleep(0)  # they are on their way, each with what its name stands for now
        if cycle % 3:
            engine.adapters.unload(name)
            del held[name]
        while len(running) > 12:
            await running.popleft()
    await asyncio.gather(*running)
    await check_idle(engine)


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.long)])
async def test_nothing_is_lost_while_adapters_come_and_go(
    count: int, tiny_model: Path, tiny_oracle: Oracle, merged: Mapping[int, Oracle], tmp_path: Path
) -> None:
    folders = [write(tmp_path / str(seed), seed) for seed in merged]
    engine = await AsyncEngine.start(config_of(tiny_model, max_loras=1))
    try:
        await _cycles(engine, folders, {None: tiny_oracle, **merged}, count)
    finally:
        await engine.stop()


async def test_an_executor_that_is_killed_reads_its_adapters_again(
    tiny_model: Path, tiny_oracle: Oracle, merged: Mapping[int, Oracle], tmp_path: Path
) -> None:
    engine = await AsyncEngine.start(config_of(tiny_model, placement="process"))
    oracles: Mapping[Any, Oracle] = {None: tiny_oracle, **merged}
    killed: list[int] = []
    try:
        for seed in merged:
            await engine.adapters.load(str(seed), write(tmp_path / str(seed), seed))

        async def stream(number: int, seed: int | None) -> None:
            ids = TokenPrompt(torch.tensor(prompt_of(number), dtype=torch.int32).numpy().tobytes())
            tokens: list[int] = []
            adapter = None if seed is None else str(seed)
            async for part in engine.generate(ids, greedy(60), RequestOptions(), adapter=adapter):
                tokens += part.token_ids
                pid = engine.executor.pid
                if not killed and len(tokens) == 30 and pid is not None:
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)
            oracles[seed].check(prompt_of(number), tokens)
            assert len(tokens) == 60

        await asyncio.gather(*(stream(number, [None, *merged][number % 5]) for number in range(15)))
        assert len(killed) == 1
        await check_idle(engine)
    finally:
        await engine.stop()


# --- what cannot be ---------------------------------------------------------------------------------------------------


async def test_adapters_that_there_is_no_room_for_are_refused_with_what_to_lower(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match=r"too little memory: adapters may take .* lower --max-lora-rank"):
        await AsyncEngine.start(config_of(tiny_model, max_lora_rank=1 << 20, max_cpu_loras=1 << 10))


async def test_an_encoder_runs_none(embedding_model: Path) -> None:
    with pytest.raises(UsageError, match=r"an encoder runs no adapters; leave out --enable-lora"):
        await AsyncEngine.start(EngineConfig(model=str(embedding_model), enable_lora=True, placement="inproc"))


async def test_a_wrong_adapter_of_the_settings_stops_the_start_and_leaves_nothing(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = by_hand.write_adapter(tmp_path / "a", by_hand.tensors(0, width=48))
    with pytest.raises(ModelError, match=r"--lora a=.*has shape \[4, 48\], rank and model ask for \[4, 64\]"):
        await AsyncEngine.start(config_of(tiny_model, lora=(f"a={folder}",)))
