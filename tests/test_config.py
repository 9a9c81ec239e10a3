"""Settings that cannot work are refused by the flag to change."""

from __future__ import annotations

from typing import Any

import pytest

from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.server.config import ServerConfig


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens"),
        ({"max_queue": 0}, "--max-queue"),
        ({"block_size": 0}, "--block-size"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"kv_cache_bytes": 0}, "--kv-cache-bytes"),
        ({"num_kv_blocks": -1}, "--num-kv-blocks"),
        ({"num_kv_blocks": 1}, "--num-kv-blocks"),
        ({"num_kv_blocks": 8, "block_size": 16, "max_model_len": 113}, "--num-kv-blocks 8 holds 112 tokens"),
        ({"cpu_threads": 0}, "--cpu-threads"),
        ({"pipeline_depth": 3}, "--pipeline-depth"),
        ({"watermark": 1.0}, "--watermark"),
        ({"watermark": -0.1}, "--watermark"),
        ({"long_prefill_token_threshold": -1}, "--long-prefill-token-threshold"),
        ({"long_prefill_token_threshold": 64, "enable_chunked_prefill": False}, "--no-enable-chunked-prefill"),
        ({"itl_target_ms": -1.0}, "--itl-target-ms"),
        ({"itl_target_ms": 60.0, "enable_chunked_prefill": False}, "--no-enable-chunked-prefill"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"load_timeout_s": 0.0}, "--load-timeout-s"),
        ({"step_timeout_s": 0.0}, "--step-timeout-s"),
        ({"kv_cache_bytes": 1 << 20, "num_kv_blocks": 9}, "not both"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "--max-num-batched-tokens"),
        ({"dtype": "float64"}, "--dtype must be one of auto, float32, bfloat16, float16"),
        ({"preemption_policy": "oldest"}, "--preemption-policy must be one of last-admitted, priority, least-computed"),
        ({"fairness_bound": -1}, "--fairness-bound"),
        ({"placement": "moon"}, "--placement"),
        ({"speculation": "draft"}, "--draft-model"),
        ({"draft_model": "small"}, "--draft-model goes with --speculation draft"),
        ({"speculation": "ngram", "draft_model": "small"}, "--draft-model goes with --speculation draft"),
        ({"num_speculative_tokens": 4}, "--num-speculative-tokens goes with --speculation ngram or draft or head"),
        ({"speculation": "ngram", "num_speculative_tokens": 0}, "--num-speculative-tokens must be from 1 to 64"),
        (
            {"speculation": "draft", "draft_model": "small", "ngram_max": 3},
            "--ngram-max goes with --speculation ngram or head",
        ),
        ({"speculation": "ngram", "ngram_min": 5, "ngram_max": 4}, "--ngram-min"),
        ({"speculation": "ngram", "ngram_min": 0}, "--ngram-max, got 0 and 8"),
        ({"speculation": "ngram", "ngram_max": 0}, "--ngram-max, got 2 and 0"),
        ({"speculation": "head", "draft_head": "small", "ngram_max": 0}, "--ngram-max, got 2 and 0"),
        ({"speculation": "guess"}, "--speculation must be one of off, ngram, draft, head"),
    ],
    ids=str,
)
def test_an_engine_setting_that_cannot_work_is_refused_by_its_flag(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError) as refused:
        EngineConfig(**values).check()
    assert flag in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"port": 65536}, "--port"),
        ({"port": -1}, "--port"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"max_prompts": 0}, "--max-prompts"),
        ({"max_buffered_bytes": 0}, "--max-buffered-bytes"),
        ({"request_timeout_s": 0.0}, "--request-timeout-s"),
        ({"keep_alive_s": -1.0}, "--keep-alive-s"),
        ({"drain_timeout_s": -1.0}, "--drain-timeout-s"),
        ({"api_key": ("",)}, "--api-key"),
    ],
    ids=str,
)
def test_a_server_setting_that_cannot_work_is_refused_by_its_flag(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServerConfig(**values).check()
    assert flag in str(refused.value)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        EngineConfig(max_num_seqs=0, watermark=2.0, dtype="int9").check()
    assert [line.split()[0] for line in str(refused.value).splitlines()] == ["--max-num-seqs", "--watermark", "--dtype"]


def test_the_defaults_and_the_edges_are_fine() -> None:
    EngineConfig().check()
    EngineConfig(num_kv_blocks=8, block_size=16, max_model_len=112).check()
    EngineConfig(watermark=0.0, max_restarts=0, pipeline_depth=2, max_num_batched_tokens=1, max_num_seqs=1).check()
    ServerConfig().check()
    ServerConfig(port=0, drain_timeout_s=0.0).check()


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig])
def test_every_setting_says_who_would_turn_it(config: type[EngineConfig] | type[ServerConfig]) -> None:
    for field in config.__dataclass_fields__.values():
        assert len(field.metadata["help"]) > 10
