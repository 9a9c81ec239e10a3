"""An engine without a model: the same house, nothing loaded and nobody started."""

from __future__ import annotations

import subprocess
import sys

from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.outputs import gather
from asyncpage.simulation.stand_in import MAX_MODEL_LEN, POOL_TOKENS, simulated_handshake, stand_in

NEEDS_NOTHING = """
import asyncio, sys, threading
from asyncpage.config import EngineConfig
from asyncpage.core.sampling import SamplingParams
from asyncpage.engine import AsyncEngine
from asyncpage.simulation.stand_in import stand_in

async def main():
    config = EngineConfig(model="there/is/none")
    engine = await AsyncEngine.start(config, stand_in=stand_in(config))
    parts = [part async for part in engine.generate([300, 301], SamplingParams(max_tokens=5))]
    assert sum(len(part.token_ids) for part in parts) == 5
    assert threading.active_count() == 1, threading.enumerate()
    await engine.stop()

asyncio.run(main())
heavy = {"torch", "aiohttp", "triton"} & sys.modules.keys()
assert not heavy, heavy
"""


def test_it_needs_no_model_no_torch_no_process_and_no_thread() -> None:
    subprocess.run([sys.executable, "-c", NEEDS_NOTHING], check=True, timeout=60)


async def test_every_choice_is_answered_in_whole_words() -> None:
    config = EngineConfig(seed=3)
    engine = await AsyncEngine.start(config, stand_in=stand_in(config, vocab_size=600))
    try:
        parts = [part async for part in engine.generate("e ta", SamplingParams(n=2, max_tokens=40, logprobs=2))]
        (ping,) = [found["executor"] for found in [await engine.ping(5)]]
    finally:
        await engine.stop()
    output = gather(parts, 2, has_logprobs=True, has_prompt_logprobs=False)
    texts = [choice.text for choice in output.outputs]
    assert texts[0] != texts[1]
    for text in texts:
        assert len(text.split()) == 40
        assert text.replace(" ", "").isalpha()
    assert ping["tokens"] == 80


def test_the_handshake_has_the_sizes_that_the_settings_ask_for() -> None:
    asked = simulated_handshake(EngineConfig(num_kv_blocks=77, block_size=32, max_model_len=500), device="cpu")
    assert (asked.blocks, asked.block_size, asked.max_model_len, asked.device) == (77, 32, 500, "cpu")
    left_open = simulated_handshake(EngineConfig(block_size=16))
    assert (left_open.blocks, left_open.max_model_len) == (1 + POOL_TOKENS // 16, MAX_MODEL_LEN)
