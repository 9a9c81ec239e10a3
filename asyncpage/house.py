"""The house: every actor, built once from settings and a handshake, joined by addresses.

`engine.py` builds it for a process; a test builds the same one with every actor on a loop of its own. Where an actor
runs is only a question of what its address is.

INVARIANT: mailboxes are sized for the admitted maximum, so a full one is a bug and never overload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import asyncpage
from asyncpage.actors.archive import Archive
from asyncpage.actors.base import Actor, ExecutorEnd
from asyncpage.actors.detokenizer import DetokenizerActor
from asyncpage.actors.frontend import Frontend
from asyncpage.actors.kv_manager import KvManager
from asyncpage.actors.recorded import Film, Recorded, Tapped
from asyncpage.actors.scheduler import Scheduler
from asyncpage.actors.tokenizer import TokenizerActor
from asyncpage.caches import native_folder
from asyncpage.clock import Clock
from asyncpage.config import EngineConfig
from asyncpage.core.admission import SchedulerSettings
from asyncpage.core.block_names import chain_names
from asyncpage.core.block_tables import BlockTables
from asyncpage.core.memory import Memory, Rules
from asyncpage.core.policy_registry import load_policy
from asyncpage.core.prefix_chain import PrefixChain
from asyncpage.core.prefix_index import PrefixIndex
from asyncpage.core.prefix_tree import PrefixTree
from asyncpage.core.tier import Tier
from asyncpage.errors import UsageError
from asyncpage.messages import ChatPrompt, Follow, Handshake
from asyncpage.pipes.host_arena import HostArena
from asyncpage.pipes.journal.recorder import Recorder
from asyncpage.pipes.journal.segment import SegmentFiles
from asyncpage.pipes.kv_folder import KvFolder
from asyncpage.pipes.mailbox import Address, Mailbox
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.reasoning.parser import ReasoningParser
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.tools.parser import ToolParser

ACTORS = ("tokenizer", "scheduler", "kv_manager", "detokenizer", "executor", "frontend")
PREFIX_INDEXES: Mapping[str, type[PrefixIndex]] = {"chain": PrefixChain, "tree": PrefixTree}
CPU_ITL_TARGET_MS = 60.0  # 16 tokens a second and answer, twice as fast as people read
SLACK = 64  # messages that are not a request's: steps, losses, pings


@dataclass(frozen=True, slots=True)
class Text:
    """What the model's files say about text."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def describe(self) -> Mapping[str, object]:
        """What a program outside needs to prepare prompts itself, in the words of tokenizer_config.json, for JSON."""
        roles = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
        template = None if self.template is None else self.template.source
        return {**roles, **self.tokenizer.named, "add_bos_token": self.tokenizer.add_bos, "chat_template": template}

    @property
    def tool_parser(self) -> ToolParser | None:
        """What reads the model's calls of tools, None where no parser is known to."""
        return None if self.template is None else self.template.tool_parser

    @property
    def reasoning_parser(self) -> ReasoningParser | None:
        """What tells the model's thinking from its answer, None where it does not think aloud."""
        return None if self.template is None else self.template.reasoning_parser

    def prompt_end(self, prompt: ChatPrompt) -> str:
        """What the chat template writes for the answer to begin behind, in a conversation like this one."""
        return "" if self.template is None else self.template.prompt_end(prompt)


@dataclass(frozen=True, slots=True)
class StandIn:
    """What a house is built from when no model is loaded: an actor in the executor's place, and the text beside it.

    `executor` is called with the scheduler's address and the clock. `around_index` may put something around the prefix
    index, such as a meter.
    """

    executor: Callable[[Address, Clock], ExecutorEnd]
    text: Text
    around_index: Callable[[PrefixIndex], PrefixIndex] | None = None

    def check(self, config: EngineConfig) -> None:
        """Errors: `UsageError` for a setting that only a model could obey."""
        if config.kv_dir is not None:
            raise UsageError("no KV is computed here that --kv-dir could keep; leave it out")
        if config.speculation != "off":
            raise UsageError("no model runs here that could verify drafts; leave --speculation out")


@dataclass(frozen=True, slots=True)
class House:
    """The actors that make one engine, beside the executor's near end. Stateless ones can be built anew.

    `actors`: those to run, of which two are behind their film when the house has one.
    """

    actors: tuple[Actor, ...]
    frontend: Frontend
    scheduler: Scheduler
    kv_manager: KvManager
    detokenizer: DetokenizerActor
    new_tokenizer: Callable[[], Actor]
    max_model_len: int


def most_open(config: EngineConfig) -> int:
    """Requests that may be open at once: those that wait, those that run, and as many again on their way."""
    return 2 * (config.max_queue + config.max_num_seqs)


def mailboxes(config: EngineConfig) -> dict[str, Mailbox]:
    """One for each actor. A request puts at most four messages into one: it comes, is accepted, ends, is cancelled."""
    return {name: Mailbox(name, 4 * most_open(config) + SLACK) for name in (*ACTORS, "archive")}


def max_model_len(config: EngineConfig, handshake: Handshake) -> int:
    """The longest prompt plus answer: what the executor takes, and what the whole pool can hold for one request.

    Errors: `UsageError` when chunked prefill is off and a step could not take the longest prompt.
    """
    pool = (handshake.blocks - 1) // len(handshake.groups) * handshake.block_size
    longest = min(handshake.max_model_len, pool)
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < longest:
        raise UsageError(
            f"without chunked prefill a step must take the longest prompt: set --max-num-batched-tokens to {longest} "
            f"or more (it is {config.max_num_batched_tokens}), or lower --max-model-len"
        )
    return longest


def fingerprint(handshake: Handshake) -> str:
    """Of all that decides what a seed draws: code, weights, arithmetic, device."""
    parts = (asyncpage.__version__, handshake.fingerprint, handshake.device, handshake.attention_backend)
    return f"fp_{sha256(' '.join(parts).encode()).hexdigest()[:12]}"


def build(
    config: EngineConfig,
    handshake: Handshake,
    text: Text,
    clock: Clock,
    seed: int,
    address_of: Callable[[str], Address],
    film: Film | None = None,
    *,
    around_index: Callable[[PrefixIndex], PrefixIndex] | None = None,
    arena: HostArena | None = None,
) -> House:
    """Build every actor but the executor's. `address_of` says how the named actor is reached from the others.

    `film`: is told of all that the scheduler and the KV manager are given and send, and is their clock.
    `around_index`: see `StandIn`. `arena`: the executor's, not yet of any size; without one nothing is stored or
    fetched.
    """

    def way(actor: str, to: str) -> Address:
        return address_of(to) if film is None else Tapped(film, actor, to, address_of(to))

    longest = max_model_len(config, handshake)
    frontends = [address_of("frontend")]
    scheduler = Scheduler(
        _scheduler_settings(config, handshake, text, longest, seed),
        own=address_of("scheduler"),
        kv_manager=way("scheduler", "kv_manager"),
        executor=way("scheduler", "executor"),
        detokenizer=way("scheduler", "detokenizer"),
        frontends=[way("scheduler", "frontend")],
    )
    index: PrefixIndex = PREFIX_INDEXES[config.prefix_index](handshake.groups, handshake.block_size)
    slots = host_slots(config, handshake)
    has_files = config.kv_dir is not None
    tables = BlockTables(
        blocks=handshake.blocks,
        block_size=handshake.block_size,
        groups=handshake.groups,
        rows=config.max_num_seqs,
        max_tokens=longest,
        index=around_index(index) if around_index is not None else index,
        tier=Tier(slots, handshake.groups, handshake.block_size, has_files=has_files) if slots else None,
    )
    archive = None if arena is None else _archive(config, handshake, arena, slots, address_of("kv_manager"), clock)
    rules = Rules(
        chunked_prefill=config.enable_chunked_prefill,
        long_prefill_tokens=config.long_prefill_token_threshold,
        watermark_blocks=int(config.watermark * (handshake.blocks - 1)),
        whole_prompt=config.whole_prompt_admission,
    )

    def new_tokenizer() -> Actor:
        return TokenizerActor(
            text.tokenizer,
            text.template,
            block_size=handshake.block_size,
            max_model_len=longest,
            vocab_size=handshake.vocab_size,
            scheduler=address_of("scheduler"),
            frontends=frontends,
            clock=clock,
        )

    names = ACTORS if archive is None else (*ACTORS, archive.name)
    actors: Mapping[str, Address] = {name: address_of(name) for name in names}
    frontend = Frontend(0, most_open(config), address_of("tokenizer"), actors)
    hearers = [way("kv_manager", "frontend")]
    if film is not None:  # a journal follows the cache as a front end may
        hearers.append(Tapped(film, "kv_manager", "journal", None))
        address_of("kv_manager").send(Follow(frontend=len(hearers) - 1, is_on=True))
    kv_manager = KvManager(
        Memory(tables, rules),
        way("kv_manager", "scheduler"),
        hearers,
        watches=load_policy(config.scheduling_policy).wants_hits,
        archive=way("kv_manager", "archive") if has_files else None,
    )
    detokenizer = DetokenizerActor(text.tokenizer, address_of("scheduler"), frontends)
    decide = (kv_manager, scheduler) if film is None else (Recorded(kv_manager, film), Recorded(scheduler, film))
    return House(
        actors=(*((archive,) if archive is not None else ()), *decide, detokenizer, frontend),
        frontend=frontend,
        scheduler=scheduler,
        kv_manager=kv_manager,
        detokenizer=detokenizer,
        new_tokenizer=new_tokenizer,
        max_model_len=longest,
    )


def host_slots(config: EngineConfig, handshake: Handshake) -> int:
    """Blocks that the host tier holds. Errors: `UsageError` when it was asked for and does not hold one."""
    size, slot_bytes = config.host_tier_bytes, handshake.kv_bytes // handshake.blocks
    if size and size < slot_bytes:
        raise UsageError(f"a KV block takes {slot_bytes} bytes, more than --kv-offload-gb {config.kv_offload_gb:g}")
    return size // max(1, slot_bytes)


def _archive(
    config: EngineConfig, handshake: Handshake, arena: HostArena, slots: int, kv_manager: Address, clock: Clock
) -> Archive | None:
    """Give the arena its size, and what reads and writes files an arena."""
    arena.set_size(slots, handshake.kv_bytes // handshake.blocks)
    if config.kv_dir is None:
        return None
    folder = KvFolder(Path(config.kv_dir).expanduser(), handshake.fingerprint, int(config.kv_dir_gb * (1 << 30)))
    return Archive(folder, arena, kv_manager, clock)


def _scheduler_settings(
    config: EngineConfig, handshake: Handshake, text: Text, longest: int, seed: int
) -> SchedulerSettings:
    # Two steps in flight gain 1.2 to 1.8 times on a device with its own clock, and nothing where the control plane
    # takes its time from the same cores.
    is_cpu = handshake.device.startswith("cpu")
    depth = config.pipeline_depth or (1 if is_cpu else 2)
    target_ms = config.itl_target_ms
    if target_ms is None:
        target_ms = CPU_ITL_TARGET_MS if is_cpu and config.enable_chunked_prefill else 0.0
    return SchedulerSettings(
        rows=config.max_num_seqs,
        block_size=handshake.block_size,
        groups=len(handshake.groups),
        capacity_blocks=handshake.blocks - 1,
        max_tokens=longest,
        budget_tokens=config.max_num_batched_tokens,
        long_prefill_tokens=config.long_prefill_token_threshold,
        depth=depth,
        max_queue=config.max_queue,
        policy=config.scheduling_policy,
        victims=config.preemption_policy,
        fairness_bound=config.fairness_bound,
        most_drafts=config.most_drafts,
        itl_target_us=int(1000 * target_ms),
        vocab_size=handshake.vocab_size,
        eos_ids=text.tokenizer.eos_ids,
        seed=seed,
        adapter_slots=config.max_loras if config.has_lora else 0,
    )


def executor_settings(
    config: EngineConfig,
    model_path: Path,
    arena: HostArena | None,
    draft_path: Path | None,
) -> dict[str, object]:
    """What the executor is told in `Load`. It inherits `arena`'s descriptor, and leaves its memory free."""
    names: Sequence[str] = (
        "exact",
        "dtype",
        "weights_dtype",
        "quantization",
        "kv_cache_dtype",
        "device",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "kv_cache_bytes",
        "num_kv_blocks",
        "attention_backend",
        "cpu_threads",
        "grammar_backend",
        "expert_parallel_size",
        "expert_load",
        "speculation",
        "most_drafts",
        "ngram_lengths",
    )
    head = None if config.draft_head is None else Path(config.draft_head).expanduser()
    paths = {
        "model_path": model_path,
        "draft_model_path": draft_path,
        "draft_head_path": head,
        "native_folder": native_folder(),
    }
    settings = {
        **{name: None if path is None else str(path) for name, path in paths.items()},
        **{name: getattr(config, name) for name in names},
    }
    if config.has_lora:
        settings |= {"max_loras": config.max_loras, "max_lora_rank": config.max_lora_rank}
        settings |= {"max_cpu_loras": config.max_cpu_loras or config.max_loras}
    if arena is not None:
        settings |= {"kv_arena_fd": arena.fd, "kv_arena_bytes": config.host_tier_bytes}
    return settings


def new_recorder(
    files: SegmentFiles, clock: Clock, config: EngineConfig, handshake: Handshake, seed: int, text: Text
) -> Recorder:
    """What films the scheduler and the KV manager of a house into `files`."""

    def first_name(salt: str, adapter: str, tokens: bytes) -> bytes:
        return b"".join(chain_names(tokens, handshake.block_size, salt=salt, adapter=adapter))

    return Recorder(
        files,
        clock,
        config=config,
        handshake=handshake,
        seed=seed,
        eos_ids=text.tokenizer.eos_ids,
        first_name=None if config.kv_dir is None else first_name,
    )
