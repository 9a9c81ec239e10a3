"""Vectors of a real encoder, against transformers and against what its authors have published."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import BertModel

from asyncpage import LLM, AsyncEngine, EngineConfig, Pooling
from asyncpage.cli.main import main
from asyncpage.errors import ModelError, RequestError, UsageError
from asyncpage.messages import RequestOptions
from tests.e2e.oracle import check_idle

Vectors = NDArray[np.float64]

# The example of the sentence-transformers library's documentation, with the similarities that it prints.
WEATHER = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
SIMILARITIES = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
# The model card's example, with the beginning of its first vector as it was published.
CARD = ["This is an example sentence", "Each sentence is converted"]
CARD_BEGINNING = [0.0676, 0.0635, 0.0487, 0.0793]

# Lengths from one word to the model's whole context, and texts of several scripts.
MIXED = [
    *WEATHER,
    "a",
    "Ein Satz über Bücher, mit Akzenten: café, naïve, Ærøskøbing.",
    "天気がいいから、散歩しましょう。",
    "привет, мир! 👋",
    "unbelievably " * 30,
    *(" ".join(f"word{number}" for number in range(count)) for count in (1, 2, 3, 5, 8, 13, 21, 34, 55, 80)),
    "the " * 254,
    "\u200b",
]


@dataclass
class Oracle:
    """transformers' own model and the tokenizers library, one text at a time."""

    model: Any
    tokenizer: Tokenizer

    def vectors(self, texts: Sequence[str], kind: str = "mean") -> Vectors:
        found = []
        for text in texts:
            with torch.no_grad():
                states = self.model(torch.tensor([self.tokenizer.encode(text).ids])).last_hidden_state[0]
            pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[kind]
            found.append(torch.nn.functional.normalize(pooled, dim=0).double().numpy())
        return np.array(found)


@pytest.fixture(scope="module")
def oracle(embedding_model: Path) -> Oracle:
    tokenizer = Tokenizer.from_file(str(embedding_model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Oracle(BertModel.from_pretrained(embedding_model, add_pooling_layer=False).eval(), tokenizer)


def settings(model: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": str(model), "placement": "inproc", "cpu_threads": 1, **changes})


async def test_vectors_are_the_oracles_whatever_the_batch_the_chunks_and_the_rows(
    embedding_model: Path, oracle: Oracle
) -> None:
    expected = oracle.vectors(MIXED)
    for changes in (
        {},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 128, "long_prefill_token_threshold": 7, "pipeline_depth": 2},
    ):
        engine = await AsyncEngine.start(settings(embedding_model, **changes))
        try:
            together = np.array(await asyncio.gather(*map(engine.embed, MIXED)))
            np.testing.assert_allclose(together, expected, atol=1e-5, rtol=0)
            alone = np.array([await engine.embed(text) for text in MIXED[:8]])
            np.testing.assert_allclose(alone, together[:8], atol=1e-6, rtol=0)
            await check_idle(engine)
        finally:
            await engine.stop()


def test_similar_sentences_are_as_close_as_was_published(embedding_model: Path) -> None:
    with LLM(str(embedding_model), cpu_threads=1) as llm:
        weather, card = (np.array(llm.embed(texts, progress=False)) for texts in (WEATHER, CARD))
        one = llm.embed(WEATHER[0], progress=False)
    np.testing.assert_allclose(weather @ weather.T, SIMILARITIES, atol=6e-5, rtol=0)
    np.testing.assert_allclose(card[0][:4], CARD_BEGINNING, atol=6e-5, rtol=0)
    assert len(one) == 1
    np.testing.assert_allclose(one[0], weather[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["cls", "last"])
async def test_another_pooling_may_be_asked_for_at_start_or_by_a_request(
    embedding_model: Path, oracle: Oracle, kind: Any
) -> None:
    engine = await AsyncEngine.start(settings(embedding_model, pooling=kind))
    try:
        found = np.array([await engine.embed(text) for text in WEATHER])
        np.testing.assert_allclose(found, oracle.vectors(WEATHER, kind), atol=1e-5, rtol=0)
        mean = await engine.embed(WEATHER[0], RequestOptions(pooling=Pooling("mean", is_normalized=False)))
        assert np.linalg.norm(mean) > 2  # as it comes out of the last norm
        np.testing.assert_allclose(mean / np.linalg.norm(mean), oracle.vectors(WEATHER[:1])[0], atol=1e-5, rtol=0)
    finally:
        await engine.stop()


async def test_a_text_that_is_too_long_is_refused_or_cut_as_the_tokenizers_library_cuts_it(
    embedding_model: Path, oracle: Oracle
) -> None:
    long = " ".join(f"number{number}" for number in range(300))
    engine = await AsyncEngine.start(settings(embedding_model))
    try:
        assert engine.max_model_len == 256  # max_seq_length, not the 512 positions
        with pytest.raises(RequestError, match="the context is 256: no room for it") as caught:
            await engine.embed(long)
        assert caught.value.failure.code == "context_length_exceeded"
        for keep in (256, 20, 3):
            oracle.tokenizer.enable_truncation(keep)
            found = await engine.embed(long, RequestOptions(truncate_prompt_tokens=keep))
            np.testing.assert_allclose(found, oracle.vectors([long])[0], atol=1e-5, rtol=0)
    finally:
        oracle.tokenizer.no_truncation()
        await engine.stop()


def test_the_command_for_a_chat_says_what_kind_of_model_it_is(
    embedding_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", "--model", str(embedding_model), "--cpu-threads", "1"]) == 2
    assert "makes embeddings only and cannot chat" in capsys.readouterr().err


async def test_an_encoder_answers_no_prompt(embedding_model: Path) -> None:
    engine = await AsyncEngine.start(settings(embedding_model))
    try:
        with pytest.raises(RequestError, match="makes embeddings only and generates no text"):
            async for _ in engine.generate("hello"):
                pass
        assert len(await engine.embed("hello")) == 384
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pooling": "none"}, "--pooling none leaves nothing to serve"),
        ({"kv_cache_bytes": 1 << 20}, "--kv-cache-bytes means nothing"),
        ({"num_kv_blocks": 100}, "--num-kv-blocks means nothing"),
        ({"attention_backend": "reference"}, "--attention-backend means nothing"),
        ({"kv_offload_gb": 0.1}, "--kv-offload-gb and --kv-dir mean nothing"),
        ({"max_model_len": 257}, "--max-model-len 257 is more than the 256 tokens"),
    ],
    ids=str,
)
async def test_settings_that_mean_nothing_to_an_encoder_are_refused_by_name(
    embedding_model: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises((UsageError, ModelError), match=match):
        await AsyncEngine.start(settings(embedding_model, **changes))


@pytest.fixture(scope="module")
def server(embedding_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command that users type, with the folder."""
    log = tmp_path_factory.mktemp("serve") / "stderr"
    command = [sys.executable, "-m", "asyncpage", "serve", str(embedding_model), "--port", "0", "--cpu-threads", "1"]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=dict(os.environ))
    assert process.stdout is not None
    with process:
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found, log.read_text()
            yield found[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert process.returncode == 0, log.read_text()
    assert "an encoder: embeddings of 384 numbers, prompts of at most 256 tokens" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_the_openai_package_gets_the_oracles_vectors_in_both_encodings(server: str, oracle: Oracle) -> None:
    expected = oracle.vectors(MIXED)
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120) as client:
        model = client.models.list().data[0].id
        packed = client.embeddings.create(model=model, input=MIXED)  # base64 is its own default
        plain = client.embeddings.create(model=model, input=MIXED, encoding_format="float", dimensions=384)
        ids = client.embeddings.create(model=model, input=[oracle.tokenizer.encode(text).ids for text in MIXED[:3]])
    for answer in (packed, plain):
        assert [entry.index for entry in answer.data] == list(range(len(MIXED)))
        np.testing.assert_allclose([entry.embedding for entry in answer.data], expected, atol=1e-5, rtol=0)
        assert answer.usage.prompt_tokens == sum(len(oracle.tokenizer.encode(text).ids) for text in MIXED)
    np.testing.assert_allclose([entry.embedding for entry in ids.data], expected[:3], atol=1e-5, rtol=0)


def test_chat_on_it_is_refused_clearly_and_too_long_inputs_are_named(server: str) -> None:
    with httpx.Client(base_url=server, timeout=60) as client:
        chat = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})
        completion = client.post("/v1/completions", json={"prompt": "hi"})
        for refused in (chat, completion):
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "model"
            assert "/v1/embeddings" in refused.json()["error"]["message"]
        long = client.post("/v1/embeddings", json={"input": ["fine", "the " * 300]})
        assert long.status_code == 400
        assert long.json()["error"]["param"] == "input"
        assert long.json()["error"]["message"].startswith("input.1: the prompt has 302 tokens")
        cut = client.post("/v1/embeddings", json={"input": ["fine", "the " * 300], "truncate_prompt_tokens": -1})
        assert cut.json()["usage"]["prompt_tokens"] == 3 + 256
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
