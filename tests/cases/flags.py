"""The one place where a case's configuration becomes flags of `asyncpage serve`.

A flag that the command line does not know yet makes the server's start a refusal, see `server`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN = {
    "max_model_len": "--max-model-len",
    "block_size": "--block-size",
    "num_kv_blocks": "--num-kv-blocks",
    "max_num_seqs": "--max-num-seqs",
    "max_batched_tokens": "--max-num-batched-tokens",
    "max_queue": "--max-queue",
    "max_loras": "--max-loras",
    "lora_dir": "--lora-dir",
    "api_key": "--api-key",
    "chat_template": "--chat-template",
    "scheduling": "--scheduling-policy",
    "preemption": "--preemption-policy",
    "allowed_origins": "--allowed-origins",
    "tool_parser": "--tool-call-parser",
}
_SWITCHES = {
    "chunked_prefill": "enable-chunked-prefill",
    "prefix_caching": "enable-prefix-caching",
    "lora": "enable-lora",
    "whole_prompt_admission": "whole-prompt-admission",
}

FEATURE_FLAGS = {}
"""What a server lacks that does not know such a flag."""


DEFAULTS: Mapping[str, Any] = {"block_size": 16, "prefix_caching": True, "chunked_prefill": True}
"""What a server does unasked. It is not asked again: a case that wants just this can share a server with others."""


def flags_for(config: Mapping[str, Any]) -> list[str]:
    """Errors: `KeyError` for a key that no case uses."""
    config = {key: value for key, value in config.items() if DEFAULTS.get(key) != value}
    rows, budget = config.get("max_num_seqs"), config.get("max_batched_tokens")
    if rows is not None and budget is not None and rows > budget:
        # Every running request must be able to advance in a step; more rows than tokens is refused at the start.
        config["max_num_seqs"] = budget
    if rows is not None and budget is None and rows > 512:
        config["max_batched_tokens"] = rows
    room = config.get("num_kv_blocks", 0) * config.get("block_size", 16)
    if room and room <= config.get("max_model_len", 0):
        # A pool must hold one request of the given length, else the start is refused; ungiven, it is the pool's size.
        del config["max_model_len"]
    if config.get("scheduling") == "priority":
        config.setdefault("preemption", "priority")
    flags: list[str] = []
    for key, value in config.items():
        if key == "spec":
            flags += ["--speculation", value["method"], "--num-speculative-tokens", str(value["k"])]
            flags += ["--draft-model", str(value["draft"])] if "draft" in value else []
        elif key == "max_body_mb":
            flags += ["--max-body-bytes", str(value * 1024 * 1024)]
        elif key in _SWITCHES:
            flags.append(f"--{'' if value else 'no-'}{_SWITCHES[key]}")
        else:
            flags += [_PLAIN[key], str(value)]
    return flags
