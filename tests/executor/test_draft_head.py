"""A head that drafts from the model's states. What it predicts is compared with a plain computation of the same weights
from scratch, over transformers' states of everything a row knows; whatever it drafts, the tokens are those without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import LlamaForCausalLM

from asyncpage.core.sampling import SamplingParams
from asyncpage.errors import FormatError, ModelError, UsageError
from asyncpage.executor.model_runner import ModelRunner
from asyncpage.executor.runner import load_runner
from asyncpage.executor.speculation.head_file import write_head
from asyncpage.messages import Load
from asyncpage.pipes.host_arena import HostArena
from asyncpage.weights.checkpoint import open_checkpoint
from tests.executor.near_end import GREEDY, Request, Scheduler, fork_and_load, request
from tests.executor.test_draft_model import CONTEXT, DRAFTS, SAMPLED, SETTINGS, VOCABULARY, answers, prompt, save

WINDOW, HEADS, KV_HEADS, HEAD_DIM, INNER, KNOWN_TOKENS = 9, 4, 2, 8, 40, 120
Make = Callable[..., ModelRunner]
Tensors = dict[str, torch.Tensor]


def config_for(model: Path, **changes: Any) -> dict[str, Any]:
    found = json.loads((model / "config.json").read_text())
    checkpoint = open_checkpoint(model)
    checkpoint.close()
    return {
        "format": "asyncpage draft head",
        "version": 1,
        "trained_for": checkpoint.fingerprint,
        "vocab_size": found["vocab_size"],
        "draft_vocab_size": KNOWN_TOKENS,
        "hidden_size": found["hidden_size"],
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT,
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        **changes,
    }


def random_tensors(config: dict[str, Any], seed: int = 5) -> Tensors:
    hidden, inner, draws = config["hidden_size"], config["intermediate_size"], torch.Generator().manual_seed(seed)
    q_items, kv_items = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    at = "model.layers.0."
    shapes = {
        "token_norm.weight": (hidden,),
        "state_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "join.weight": (hidden, 2 * hidden),
        "head.weight": (config["draft_vocab_size"], hidden),
        f"{at}input_layernorm.weight": (hidden,),
        f"{at}post_attention_layernorm.weight": (hidden,),
        f"{at}self_attn.q_proj.weight": (q_items, hidden),
        f"{at}self_attn.k_proj.weight": (kv_items, hidden),
        f"{at}self_attn.v_proj.weight": (kv_items, hidden),
        f"{at}self_attn.o_proj.weight": (hidden, q_items),
        f"{at}mlp.gate_proj.weight": (inner, hidden),
        f"{at}mlp.up_proj.weight": (inner, hidden),
        f"{at}mlp.down_proj.weight": (hidden, inner),
    }
    tensors = {
        # As float16 has them, in which they are stored.
        name: (torch.randn(shape, generator=draws) * 0.3 + (len(shape) == 1)).half().float()
        for name, shape in shapes.items()
    }
    ids = torch.randperm(config["vocab_size"], generator=draws)[: config["draft_vocab_size"]]
    return {**tensors, "draft_ids": ids}


@pytest.fixture(scope="module")
def great(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save(tmp_path_factory.mktemp("great"), 3))


@pytest.fixture(scope="module")
def head(great: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    config = config_for(great)
    write_head(folder, config, random_tensors(config))
    return folder


@pytest.fixture
def make(great: Path, head: Path) -> Make:
    def build(draft: Path | None = None, **changes: Any) -> ModelRunner:
        settings = {**SETTINGS, "model_path": str(great)}
        if draft is not None:
            settings |= {"speculation": "head", "draft_head_path": str(draft)}
            settings |= {"most_drafts": DRAFTS, "ngram_lengths": (0, 8)}
        return load_runner(Load({**settings, **changes}))

    return build


class Plain:
    """The head by dense matrices: `places` first to last, each seeing the window before it."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.ids = self.weights.pop("draft_ids").long()

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weights[f"{name}.weight"]

    def turn(self, x_THD: torch.Tensor) -> torch.Tensor:
        half = HEAD_DIM // 2
        angles = torch.arange(len(x_THD))[:, None] * 1000.0 ** (-torch.arange(half) / half)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x_THD[..., :half], x_THD[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def predict(self, tokens: list[int], states_TE: torch.Tensor) -> torch.Tensor:
        """Predicted states for all places, of which `states_TE` are the states before."""
        at, weights, n = "model.layers.0.", self.weights, len(tokens)
        embedded = self.model.model.embed_tokens(torch.tensor(tokens))
        joined = torch.cat((self.norm("token_norm", embedded), self.norm("state_norm", states_TE)), -1)
        x = joined @ weights["join.weight"].T
        normed = self.norm(f"{at}input_layernorm", x)
        q, k, v = (
            (normed @ weights[f"{at}self_attn.{name}_proj.weight"].T).view(n, heads, HEAD_DIM)
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        q, k = self.turn(q), self.turn(k)
        k, v = (one.repeat_interleave(HEADS // KV_HEADS, 1) for one in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        distance = torch.arange(n)[:, None] - torch.arange(n)
        scores = scores.masked_fill((distance < 0) | (distance >= WINDOW), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, -1)
        x = x + mixed @ weights[f"{at}self_attn.o_proj.weight"].T
        normed = self.norm(f"{at}post_attention_layernorm", x)
        gate, up = (normed @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return self.norm("norm", x + (functional.silu(gate) * up) @ weights[f"{at}mlp.down_proj.weight"].T)

    @torch.inference_mode()
    def drafts(self, known: list[int], count: int, first: int = 0) -> list[int]:
        """Greedy ones behind what a row knows, which has computed nothing before place `first` itself."""
        true = self.model.model(torch.tensor([known])).last_hidden_state[0]
        states = torch.cat((torch.zeros(1, true.shape[1]), true[:-1]))
        states[first] = 0.0
        tokens = list(known)
        for _ in range(count):
            predicted = self.predict(tokens, states)
            tokens.append(int(self.ids[(predicted[-1] @ self.weights["head.weight"].T).argmax()]))
            states = torch.cat((states, predicted[-1:]))
        return tokens[len(known) :]


def proposals(executor: ModelRunner) -> list[tuple[list[int], list[int]]]:
    """Fills with what each row knew and what was drafted for it."""
    found: list[tuple[list[int], list[int]]] = []
    propose = executor._proposer.propose

    def noted(batch: Any, rows: Any, counts: Any, asked: Any) -> Any:
        drafts = propose(batch, rows, counts, asked)
        at = 0
        for row, count in zip(rows.tolist(), drafts.counts.tolist(), strict=True):
            if count:
                found.append((batch.known_of(row).tolist(), drafts.tokens[at : at + count].tolist()))
            at += count
        return drafts

    executor._proposer.propose = noted
    return found


def test_tokens_are_those_without_a_head(make: Make, head: Path) -> None:
    plain, slow = answers(make(), 0)
    drafted, fast = answers(make(head), DRAFTS)
    assert drafted == plain
    assert fast.number <= slow.number


def repetition(known: list[int]) -> list[int]:
    """What comes behind the newest three to eight tokens where they came before, the most and the latest."""
    for length in range(8, 2, -1):
        places = [end for end in range(length, len(known)) if known[end - length : end] == known[-length:]]
        if places:
            return (known[places[-1] :] * DRAFTS)[:DRAFTS]
    return []


def test_a_text_that_repeats_itself_is_drafted_from_itself_and_another_by_the_head(
    make: Make, great: Path, head: Path
) -> None:
    executor, plain = make(head, ngram_lengths=(3, 8)), Plain(great, head)
    found = proposals(executor)
    scheduler, plainly = Scheduler(executor), Scheduler(make())
    made, others = (
        [request(prompt(length)) for length in (4, 9, 17)],
        [request(prompt(length)) for length in (4, 9, 17)],
    )
    for row, (one, other) in enumerate(zip(made, others, strict=True)):
        scheduler.start(one, row)
        plainly.start(other, row)
    scheduler.run(60, drafts=DRAFTS)
    plainly.run(60)
    assert [one.output[:60] for one in made] == [other.output[:60] for other in others]
    repeated = [repetition(known) for known, _ in found]
    assert 0 < sum(map(bool, repeated)) < len(found)
    for (known, drafts), expected in zip(found, repeated, strict=True):
        assert drafts == (expected or plain.drafts(known, DRAFTS))[: len(drafts)]


def test_drafts_are_those_of_a_plain_computation_from_scratch(make: Make, great: Path, head: Path) -> None:
    """Rows of one batch, prompts in chunks, with pauses in which nothing is asked and drafts that fall."""
    executor, plain = make(head), Plain(great, head)
    found = proposals(executor)
    scheduler = Scheduler(executor)
    made = [scheduler.start(request(prompt(length)), row) for row, length in enumerate((3, 30, 11))]
    for number in range(24):
        scheduler.step(chunk=7, drafts=DRAFTS if number % 7 < 4 else 0)
    assert len(found) > 20
    for known, drafts in found:
        assert drafts == plain.drafts(known, len(drafts))
    assert all(one.drafted for one in made)


def test_a_row_that_lags_by_more_than_its_window_or_a_pass_catches_up(make: Make, great: Path, head: Path) -> None:
    executor, plain = make(head, max_num_batched_tokens=20, max_num_seqs=4), Plain(great, head)
    found = proposals(executor)
    scheduler = Scheduler(executor)
    for row in range(3):
        scheduler.start(request(prompt(5 + row)), row)
    for _ in range(30):
        scheduler.step(budget=20)
    scheduler.step(budget=12, drafts=2)
    assert [len(drafts) for _, drafts in found] == [2, 2, 2]
    for known, drafts in found:
        assert drafts == plain.drafts(known, 2)


def test_its_keys_and_values_go_with_blocks_that_are_shared_copied_and_saved(
    make: Make, great: Path, head: Path
) -> None:
    arena = HostArena()
    executor, plain = make(head, kv_arena_fd=arena.fd), Plain(great, head)
    arena.set_size(4, executor.handshake.kv_bytes // executor.handshake.blocks)
    scheduler = Scheduler(executor)
    first = scheduler.start(request(prompt(22)), 0)
    scheduler.step()
    scheduler.step(drafts=2)
    fork, back = fork_and_load(scheduler, first, GREEDY)
    found = proposals(executor)
    for _ in range(3):
        scheduler.step(drafts=DRAFTS)
    assert len(found) == 9
    begins = {tuple(one.prompt): first for one, first in ((fork, 21), (back, 16))}
    for known, drafts in found:
        expected = [plain.drafts(known, len(drafts))]
        for start, place in begins.items():
            if known[: len(start)] == list(start):
                expected.append(plain.drafts(known, len(drafts), place))
        assert drafts in expected
    assert first.output[: len(fork.output)] == fork.output


def test_a_request_that_was_preempted_or_takes_anothers_row_drafts_as_before(
    make: Make, great: Path, head: Path
) -> None:
    executor, plain = make(head), Plain(great, head)
    found = proposals(executor)
    scheduler = Scheduler(executor)
    one = scheduler.start(request(prompt(13), SAMPLED), 0)
    for _ in range(4):
        scheduler.step(drafts=DRAFTS)
    scheduler.stop(one)
    other = scheduler.start(request(prompt(8)), 0)
    scheduler.step(drafts=DRAFTS)
    scheduler.start(one, 11)  # beyond the rows that there were
    found.clear()
    for _ in range(5):
        scheduler.step(chunk=6, drafts=DRAFTS)
    greedy = [(known, drafts) for known, drafts in found if known[:8] == other.prompt]
    assert len(greedy) == 5
    for known, drafts in greedy:
        assert drafts == plain.drafts(known, len(drafts))
    plainly = Scheduler(make())
    again = plainly.start(request(prompt(13), SAMPLED), 0)
    plainly.run(len(one.output))
    assert again.output == one.output


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_head_that_cannot_be_wrong_never_is(tmp_path: Path, make: Make, sampling: SamplingParams) -> None:
    """Where the model's layers say nothing, the next token follows from the last one, as the head's own can have it."""
    model = LlamaForCausalLM.from_pretrained(save(tmp_path / "model", 3))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(model.lm_head.weight.half())
    model.save_pretrained(tmp_path / "model")
    config = config_for(tmp_path / "model", draft_vocab_size=VOCABULARY, intermediate_size=INNER)
    tensors, hidden = random_tensors(config), config["hidden_size"]
    tensors["join.weight"] = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"model.layers.0.{name}.weight"].zero_()
    for name in ("token_norm", "norm"):
        tensors[f"{name}.weight"] = torch.ones(hidden)
    tensors["head.weight"] = model.lm_head.weight.detach()[tensors["draft_ids"]]
    write_head(tmp_path / "head", config, tensors)
    scheduler = Scheduler(make(tmp_path / "head", model_path=str(tmp_path / "model")))
    made = [scheduler.start(request(prompt(length), sampling, seed=length), row) for row, length in enumerate((13, 5))]
    scheduler.step(chunk=13, drafts=DRAFTS)
    for _ in range(6):
        scheduler.step(drafts=DRAFTS)
    for one in made:
        assert one.drafted == 6 * DRAFTS
        assert len(one.output) == 7 + one.drafted


def test_no_draft_lies_beyond_what_the_head_takes(tmp_path: Path, make: Make, great: Path) -> None:
    config = config_for(great, max_position_embeddings=24)
    write_head(tmp_path, config, random_tensors(config))
    scheduler = Scheduler(make(tmp_path))
    one, long = scheduler.start(request(prompt(15)), 0), scheduler.start(request(prompt(30)), 1)
    scheduler.run(40, drafts=DRAFTS)
    assert one.drafted > 0
    assert long.drafted == 0


def test_a_block_counts_the_heads_bytes_and_a_successor_must_have_the_same_one(
    tmp_path: Path, make: Make, great: Path, head: Path
) -> None:
    config = config_for(great)
    write_head(tmp_path, config, random_tensors(config, seed=6))
    plain, with_it, other = make().handshake, make(head).handshake, make(tmp_path).handshake
    layer_bytes = 2 * 4 * KV_HEADS * HEAD_DIM * 4
    assert with_it.kv_bytes - plain.kv_bytes == layer_bytes * plain.blocks
    assert len({plain.fingerprint, with_it.fingerprint, other.fingerprint}) == 3


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    found = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def replace_tensor(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / "model.safetensors")


WRONG: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "absent": (shutil.rmtree, ModelError, "no such folder"),
    "no head": (lambda folder: change(folder, format=None, architectures=["X"]), FormatError, "format.*is None"),
    "another version": (lambda folder: change(folder, version=2), FormatError, "version.*is 2.*reads 1"),
    "another size": (lambda folder: change(folder, hidden_size=64), ModelError, "another model: its hidden_size is 64"),
    "another vocabulary": (lambda folder: change(folder, vocab_size=9), ModelError, "its vocab_size is 9, here 199"),
    "another model": (lambda folder: change(folder, trained_for="ab" * 32), ModelError, "fingerprint abababababab,"),
    "unknown field": (lambda folder: change(folder, qk_norm=True), FormatError, "qk_norm.*is not known"),
    "missing field": (lambda folder: change(folder, sliding_window=None), FormatError, "sliding_window.*is missing"),
    "no window": (lambda folder: change(folder, sliding_window=0), ModelError, "sliding_window must be a positive"),
    "two layers": (lambda folder: change(folder, num_hidden_layers=2), FormatError, "num_hidden_layers.*a head has 1"),
    "missing tensor": (lambda folder: replace_tensor(folder, "join.weight", None), ModelError, "join.weight"),
    "wrong shape": (lambda folder: replace_tensor(folder, "join.weight", torch.zeros(3, 3)), ModelError, "join.weight"),
    "ids twice": (
        lambda folder: replace_tensor(folder, "draft_ids", torch.zeros(KNOWN_TOKENS, dtype=torch.int32)),
        FormatError,
        "draft_ids.*each once",
    ),
    "ids outside": (
        lambda folder: replace_tensor(folder, "draft_ids", torch.arange(199, dtype=torch.int32)[-KNOWN_TOKENS:] + 1),
        FormatError,
        "draft_ids.*below 199",
    ),
    "fewer ids": (
        lambda folder: replace_tensor(folder, "draft_ids", torch.arange(7, dtype=torch.int32)),
        ModelError,
        "draft_ids has shape",
    ),
    "cut short": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9]),
        FormatError,
        "cut short",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_head_that_does_not_belong_here_is_refused_by_name(make: Make, head: Path, tmp_path: Path, kind: str) -> None:
    spoil, error, says = WRONG[kind]
    folder = tmp_path / "head"
    shutil.copytree(head, folder)
    spoil(folder)
    with pytest.raises(error, match=says):
        make(folder)


def test_a_head_that_looks_further_back_than_the_models_windows_is_refused(
    make: Make, tmp_path: Path, great: Path
) -> None:
    model = Path(save(tmp_path / "model", 3, sliding_window=WINDOW - 1))
    config = config_for(model)
    write_head(tmp_path / "head", config, random_tensors(config))
    with pytest.raises(UsageError, match=r"--draft-head .* looks further back than every layer of the model"):
        make(tmp_path / "head", model_path=str(model))
    config = config_for(model, sliding_window=WINDOW - 1)
    write_head(tmp_path / "head", config, random_tensors(config))
    drafted, _ = answers(make(tmp_path / "head", model_path=str(model)), DRAFTS)
    assert drafted == answers(make(model_path=str(model)), 0)[0]


def test_what_it_costs_where_nothing_is_drafted_is_a_copy(make: Make, head: Path) -> None:
    executor = make(head)
    calls = 0
    forward = executor._proposer._head.forward

    def counted(*given: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return forward(*given)

    executor._proposer._head.forward = counted
    scheduler = Scheduler(executor)
    made: list[Request] = [scheduler.start(request(prompt(30)), 0), scheduler.start(request(prompt(9)), 1)]
    scheduler.run(20, chunk=7)
    assert calls == 0
    assert all(np.isfinite(one.output).all() for one in made)
