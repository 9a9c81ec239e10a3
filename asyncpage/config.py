"""The settings of the engine, parsed once and passed by value; the server's are declared alike (`server.config`).

A field's metadata holds its help text (who would turn it) and what its command-line flag needs to know; the
command line, the environment (`ASYNCPAGE_*`) and the TOML file are all read from these declarations.
Nothing else reads the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from asyncpage.errors import UsageError


def setting(default: Any, help: str, *, choices: tuple[str, ...] = (), unit: str = "") -> Any:
    """A dataclass field with what its flag needs: help, allowed words, unit of the value."""
    return field(default=default, metadata={"help": help, "choices": choices, "unit": unit})


STAGING_BYTES = 1 << 28
"""Host slots in front of `kv_dir` without `kv_offload_gb`: 364 blocks of the demo model, one prompt of 5,800 tokens."""

_NGRAM_MIN, _NGRAM_MAX = 2, 8
_DRAFTS, _MOST_DRAFTS = 7, 64

_SPECULATION_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "num_speculative_tokens": ("ngram", "draft", "head"),
    "draft_model": ("draft",),
    "draft_head": ("head",),
    "ngram_min": ("ngram", "head"),
    "ngram_max": ("ngram", "head"),
}
"""Which kinds of speculation obey a setting."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine runs and how; the effective values are fixed by the executor's handshake."""

    model: str = setting("demo", "a GGUF file, a folder with config.json and safetensors, ORG/NAME, or 'demo'")
    served_model_name: tuple[str, ...] = setting((), "names the API answers to; the first is shown (default: MODEL)")
    dtype: str = setting(
        "auto",
        "type of activations and weights; auto is float32 on a CPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    weights_dtype: str = setting(
        "auto",
        "type in which weights are held, and widened as they are used; auto is dtype. For a model that does not fit a "
        "CPU's memory in float32: half of it, and steps that take up to twice as long. Any type but auto "
        "dequantises quantised weights",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = setting(
        "none",
        "put weights that lie on no grid that native code has on one as they are loaded, on a CPU: int8 takes a fourth "
        "of float32, int4 less than a fifth, and steps as much less time; tables with a row for each token take 8 bits "
        "in both",
        choices=("none", "int8", "int4"),
    )
    exact: bool = setting(
        False,
        "float32 throughout: quantised weights are dequantised, where a CPU else multiplies by them as they are, with "
        "activations in 8 bits; to compare numbers with other engines, at several times the memory and time",
    )
    kv_cache_dtype: str = setting(
        "auto", "type of the KV cache; auto follows dtype", choices=("auto", "float32", "bfloat16", "float16")
    )
    device: str = setting("auto", "where the model runs", choices=("auto", "cpu", "cuda"))
    max_model_len: int | None = setting(None, "longest prompt plus answer; default: the model's", unit="tokens")
    max_num_seqs: int = setting(128, "requests that run at once", unit="requests")
    max_num_batched_tokens: int = setting(
        512, "tokens a step may compute; lower it for smoother streams beside long prompts", unit="tokens"
    )
    block_size: int = setting(16, "tokens in a KV block", unit="tokens")
    kv_cache_bytes: int | None = setting(
        None, "memory for the KV cache; default: a share of what is free", unit="bytes"
    )
    num_kv_blocks: int | None = setting(None, "blocks in the KV pool, instead of --kv-cache-bytes", unit="blocks")
    kv_offload_gb: float = setting(
        0.0,
        "host memory that keeps KV blocks which the pool gives up, 0 for none; worth it where prompts come back that "
        "the pool has no room for",
        unit="GiB",
    )
    kv_dir: str | None = setting(
        None, "a folder that keeps KV blocks in files, so that a restarted server starts warm; one for every user"
    )
    kv_dir_gb: float = setting(8.0, "most that the files in --kv-dir take; the longest unused go first", unit="GiB")
    enable_prefix_caching: bool = setting(True, "reuse the KV of prompts with a common beginning")
    prefix_index: str = setting(
        "chain",
        "how common beginnings are found: a chain of block names, or a tree of tokens; 'asyncpage simulate "
        "--compare-index' shows which is better for a trace",
        choices=("chain", "tree"),
    )
    enable_chunked_prefill: bool = setting(True, "let long prompts share steps with running requests")
    long_prefill_token_threshold: int = setting(
        0, "most tokens one prompt may take of a step, 0 for no limit", unit="tokens"
    )
    itl_target_ms: float | None = setting(
        None,
        "how long answers that run may wait for their next token while prompts are computed beside them, which is in "
        "slices of measured length; raise it, or 0 for no bound, where throughput matters more; default: 60 on a CPU, "
        "elsewhere no bound",
        unit="ms",
    )
    whole_prompt_admission: bool = setting(
        True,
        "let a request in only when blocks for all it knows are free; without it more start at once and preempt one "
        "another",
    )
    watermark: float = setting(0.01, "share of blocks kept free when admitting, against needless preemption")
    scheduling_policy: str = setting(
        "fcfs",
        "who is served first: fcfs, priority (the requests' own numbers), longest-prefix (the most cached tokens, for "
        "prompts that begin alike), or a policy of yours by entry point",
    )
    preemption_policy: str = setting(
        "last-admitted",
        "who makes way when KV blocks run out: priority where some requests matter more, least-computed where what was "
        "computed is dear",
        choices=("last-admitted", "priority", "least-computed"),
    )
    fairness_bound: int = setting(
        2048,
        "how many others may be let in before a request that waits passes all, oldest first; raise it, or 0 for no "
        "bound, where order matters more than the longest wait",
        unit="requests",
    )
    pipeline_depth: int | None = setting(
        None, "steps in flight: 2 where the device has its own clock, 1 on a CPU (the default there)"
    )
    max_queue: int = setting(1024, "requests that may wait before new ones are refused with 429", unit="requests")
    pooling: str = setting(
        "auto",
        "how embeddings make one vector of a prompt's states; auto is what the model's files say, else the mean of an "
        "encoder's and the last of a decoder's; none refuses embeddings",
        choices=("auto", "last", "mean", "cls", "none"),
    )
    attention_backend: str = setting("auto", "an attention backend by name; see 'asyncpage backends --explain'")
    grammar_backend: str = setting(
        "builtin",
        "what makes answers follow schemas and grammars: builtin, llguidance or xgrammar (packages to install), or a "
        "backend of yours by entry point",
    )
    enable_lora: bool = setting(False, "run LoRA adapters beside the model; --lora and --lora-dir turn it on, too")
    lora: tuple[str, ...] = setting((), "an adapter to load, as NAME=FOLDER; requests name it as their model; repeat")
    lora_dir: tuple[str, ...] = setting(
        (), "a folder whose adapters may be loaded and unloaded over the API while the server runs; repeat for several"
    )
    max_loras: int = setting(8, "different adapters that may run in one batch", unit="adapters")
    max_lora_rank: int = setting(64, "greatest rank of an adapter; memory is kept free for it", unit="ranks")
    max_cpu_loras: int | None = setting(
        None,
        "adapters whose tensors are kept in memory, the others are read again from their folders; default: --max-loras",
        unit="adapters",
    )
    speculation: str = setting(
        "off",
        "guess tokens ahead and verify them in one pass, for faster answers with the same tokens: ngram looks for the "
        "newest tokens earlier in the request's own text, which suits answers that quote or edit their prompt; draft "
        "asks a smaller model; head does as ngram, and where that finds none asks a layer trained for the model",
        choices=("off", "ngram", "draft", "head"),
    )
    draft_model: str | None = setting(
        None, "the smaller model that guesses, with the same vocabulary: named as --model is, for --speculation draft"
    )
    draft_head: str | None = setting(
        None, "the folder of a head trained for the model by scripts/train_draft_head, for --speculation head"
    )
    num_speculative_tokens: int | None = setting(
        None,
        "most tokens guessed for a request in a step (default: 7); fewer are tried where that is faster",
        unit="tokens",
    )
    ngram_min: int | None = setting(
        None,
        "newest tokens that must come before in this order, for ngram and head (default: 2); 0 leaves all to the head",
        unit="tokens",
    )
    ngram_max: int | None = setting(
        None,
        "of places where they do, the one that agrees longest, up to this, is followed (default: 8)",
        unit="tokens",
    )
    cpu_threads: int | None = setting(None, "threads of the executor; default: the cores of this cgroup")
    seed: int | None = setting(None, "seed of what requests do not seed themselves; default: drawn at start")
    generation_config: str = setting(
        "auto",
        "'auto' takes the model's generation_config.json as defaults, 'none' ignores it",
        choices=("auto", "none"),
    )
    chat_template: str | None = setting(None, "a Jinja file to use instead of the model's chat template")
    tool_call_parser: str = setting(
        "auto",
        "the format in which the model calls tools, or a parser of yours by entry point; auto tells it from the chat "
        "template",
    )
    reasoning_parser: str = setting(
        "auto",
        "the marks of what the model thinks before it answers, or a parser of yours by entry point; auto tells them "
        "from the chat template, none leaves them in the answer",
    )
    placement: str = setting(
        "process",
        "where the executor runs: its own process, or a thread of this one",
        choices=("process", "inproc"),
    )
    expert_parallel_size: int = setting(
        1,
        "processes that share the experts of a model, each with a device of its own where there are GPUs; raise it "
        "where one does not hold them all",
        unit="processes",
    )
    expert_load: str | None = setting(
        None,
        "a file that counts the tokens each expert serves; at the next start it decides which process holds which, so "
        "that all are equally busy; 'asyncpage doctor --expert-load' shows it",
    )
    load_timeout_s: float = setting(300.0, "how long an executor may take to load", unit="seconds")
    step_timeout_s: float = setting(
        120.0, "how long one step may take before its executor counts as hung", unit="seconds"
    )
    max_restarts: int = setting(5, "executor losses in a row, without a finished step between, before giving up")
    journal: str | None = setting(
        None, "record every decision in this file, for 'asyncpage replay': when you look into a bug or a policy"
    )
    journal_bytes: int = setting(
        1 << 30, "size of the journal at which its oldest eighth goes; a whole one can be replayed", unit="bytes"
    )
    journal_tokens: bool = setting(
        False, "keep true token ids in the journal; without it they are renamed at random and prompts stay out"
    )

    @property
    def has_lora(self) -> bool:
        """Whether adapters can be run."""
        return bool(self.enable_lora or self.lora or self.lora_dir)

    @property
    def host_tier_bytes(self) -> int:
        """Host memory for KV blocks: what was asked for, or what files are read and written through."""
        if self.kv_offload_gb or self.kv_dir is None:
            return int(self.kv_offload_gb * (1 << 30))
        return STAGING_BYTES

    @property
    def most_drafts(self) -> int:
        """Drafts of a request in a step, 0 without speculation."""
        if self.speculation == "off":
            return 0
        return _DRAFTS if self.num_speculative_tokens is None else self.num_speculative_tokens

    def without_speculation(self) -> Self:
        """The same settings, but for speculation and what goes with it."""
        others: dict[str, Any] = dict.fromkeys(_SPECULATION_SETTINGS)
        return replace(self, speculation="off", **others)

    @property
    def ngram_lengths(self) -> tuple[int, int]:
        """The fewest newest tokens that must come before in this order, and the most that are compared."""
        shortest = _NGRAM_MIN if self.ngram_min is None else self.ngram_min
        return shortest, _NGRAM_MAX if self.ngram_max is None else self.ngram_max

    def check(self) -> None:
        """Refuse settings that cannot work together, before anything is loaded.

        Errors: `UsageError` naming the flags to change, all of them.
        """
        refuse(self.problems())

    def problems(self) -> Iterator[str]:
        """What is wrong, each with the flag to change."""
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_queue",
            "block_size",
            "max_loras",
            "max_lora_rank",
            "expert_parallel_size",
        ):
            if getattr(self, name) < 1:
                yield f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}"
        for name in ("max_model_len", "kv_cache_bytes", "num_kv_blocks", "cpu_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"--{name.replace('_', '-')} must be at least 1, got {value}"
        if self.expert_parallel_size > 1 and self.placement != "process":
            yield (
                f"--expert-parallel-size {self.expert_parallel_size} needs --placement process: its processes end "
                "together, and this one would end with them"
            )
        for text in self.lora:
            name, joint, folder = text.partition("=")
            if not (name and joint and folder):
                yield f"--lora must be NAME=FOLDER, got {text!r}"
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            yield (
                f"--max-cpu-loras ({self.max_cpu_loras}) must be at least --max-loras ({self.max_loras}): what runs is "
                "in memory"
            )
        if self.journal_bytes < 1 << 20:
            yield f"--journal-bytes must be at least 1MiB, got {self.journal_bytes}"
        if self.pipeline_depth not in (None, 1, 2):
            yield f"--pipeline-depth must be 1 or 2, got {self.pipeline_depth}"
        if not 0 <= self.watermark < 1:
            yield f"--watermark must be at least 0 and below 1, got {self.watermark}"
        if self.fairness_bound < 0:
            yield f"--fairness-bound must be 0 (no bound) or more, got {self.fairness_bound}"
        if self.long_prefill_token_threshold < 0:
            yield "--long-prefill-token-threshold must be 0 (no limit) or more"
        if self.itl_target_ms is not None and self.itl_target_ms < 0:
            yield f"--itl-target-ms must be 0 (no bound) or more, got {self.itl_target_ms:g}"
        if self.itl_target_ms and not self.enable_chunked_prefill:
            yield (
                "--itl-target-ms cuts prompts into chunks, which --no-enable-chunked-prefill forbids; give one of them"
            )
        if self.long_prefill_token_threshold and not self.enable_chunked_prefill:
            yield (
                "--long-prefill-token-threshold cuts prompts into chunks, which --no-enable-chunked-prefill forbids; "
                "give one of them"
            )
        if self.kv_offload_gb < 0 or self.kv_dir_gb <= 0:
            yield "--kv-offload-gb must be 0 (off) or more, and --kv-dir-gb greater than 0"
        if self.host_tier_bytes and not self.enable_prefix_caching:
            flag = "--kv-dir" if self.kv_dir is not None else "--kv-offload-gb"
            yield f"{flag} keeps cached prefixes, and --no-enable-prefix-caching has none; give one of them"
        if self.max_restarts < 0:
            yield "--max-restarts must be 0 or more"
        for name in ("load_timeout_s", "step_timeout_s"):
            if getattr(self, name) <= 0:
                yield f"--{name.replace('_', '-')} must be greater than 0"
        for name in ("dtype", "weights_dtype", "kv_cache_dtype"):
            if self.exact and getattr(self, name) not in ("auto", "float32"):
                flag = f"--{name.replace('_', '-')}"
                yield f"--exact is float32 throughout, and {flag} is {getattr(self, name)}; give one of them"
        if self.quantization != "none":
            others = (("exact", False), ("weights_dtype", "auto"))
            for flag in (f"--{name.replace('_', '-')}" for name, plain in others if getattr(self, name) != plain):
                yield f"--quantization is a way to hold weights, and so is {flag}; give one of them"
            if self.dtype not in ("auto", "float32") or self.device == "cuda":
                yield "--quantization is for a CPU that computes in float32; leave out --dtype and --device, or it"
        if self.kv_cache_bytes is not None and self.num_kv_blocks is not None:
            yield "give --kv-cache-bytes or --num-kv-blocks, not both"
        if self.num_kv_blocks == 1:
            yield "--num-kv-blocks must be at least 2, got 1: block 0 is never handed out"
        pool = (self.num_kv_blocks or 0) * self.block_size
        if self.max_model_len is not None and 0 < pool < self.max_model_len + self.block_size:
            yield (
                f"--num-kv-blocks {self.num_kv_blocks} holds {max(0, pool - self.block_size)} tokens (block 0 is never "
                f"handed out), and --max-model-len {self.max_model_len} lets one request have more; raise the one or "
                "lower the other"
            )
        if 1 <= self.max_num_batched_tokens < self.max_num_seqs:
            yield (
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs}), so that every running request can advance in a step"
            )
        yield from self._speculation_problems()
        for item in type(self).__dataclass_fields__.values():
            choices = item.metadata.get("choices", ())
            if choices and getattr(self, item.name) not in choices:
                flag = f"--{item.name.replace('_', '-')}"
                yield f"{flag} must be one of {', '.join(choices)}; got {getattr(self, item.name)!r}"

    def _speculation_problems(self) -> Iterator[str]:
        """Of what is given for one kind of speculation and would be ignored by the one that runs, by name."""
        if self.num_speculative_tokens is not None and not 1 <= self.num_speculative_tokens <= _MOST_DRAFTS:
            yield f"--num-speculative-tokens must be from 1 to {_MOST_DRAFTS}, got {self.num_speculative_tokens}"
        for name, kinds in _SPECULATION_SETTINGS.items():
            if getattr(self, name) is not None and self.speculation not in kinds:
                flag, wanted = f"--{name.replace('_', '-')}", " or ".join(kinds)
                yield f"{flag} goes with --speculation {wanted}, and it is {self.speculation}; give both or neither"
        if self.speculation == "draft" and self.draft_model is None:
            yield "--speculation draft needs a smaller model that guesses; name it with --draft-model"
        if self.speculation == "head" and self.draft_head is None:
            yield "--speculation head needs a head that guesses; name its folder with --draft-head"
        shortest, longest = self.ngram_lengths
        least = 0 if self.speculation == "head" else 1
        if longest < 1 or not least <= shortest <= longest:
            yield f"--ngram-min must be at least {least} and at most --ngram-max, got {shortest} and {longest}"


def refuse(problems: Iterator[str]) -> None:
    """Errors: `UsageError` with all of them, if there are any."""
    found = list(problems)
    if found:
        raise UsageError("\n".join(found))
