"""Trains a draft head: to predict what the model will say from its states, and from its own guesses at them.

`scripts/train_draft_head` makes the lessons and gives it time. The head can be unrolled over a few steps (Li et al.
2025, "training-time test"): behind the first, each place is given the state that the step before has predicted, and
looks back at keys and values made of states up to where its chain of guesses begins, and of guesses from there on, as
it will when it drafts. So it is told how its drafts stand; the script trains one step, as three learnt less in the same
time (two minutes of the demo: of the first drafts 30.0 % stood instead of 35.7, of two in a row 8.9 instead of 10.7, of
three 2.7 instead of 2.5). It is asked for the model's own distribution of the next token over the tokens that it knows
(the model teaches; Hinton et al. 2015), and for the state (Li et al. 2024). Its rows of the vocabulary are the model's.

INVARIANT: what is computed here is what `draft_head` computes of the same tensors; a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from asyncpage.executor.speculation.head_lessons import Batch, Lesson, batches
from asyncpage.models.config import DecoderSizes, whole
from asyncpage.models.rope import Rope, RopeSettings, turn

LAYER = "model.layers.0."
_LEARNING_RATE, _WARM_UP = 1e-3, 20
_RIDGE = 0.003  # of the mean square
_STATE_WEIGHT = 0.1  # of the states' error beside that of the tokens
_STEP_WEIGHT = 0.8  # a later step's, of the one before


class HeadTraining:
    """A head in training. `config`: `head_file`'s; `start`: its tensors by name, the rows of its vocabulary among them.

    `embed`: the model's. Everything is float32 on the CPU.
    """

    def __init__(
        self, config: Mapping[str, Any], start: Mapping[str, Tensor], embed: Callable[[Tensor], Tensor]
    ) -> None:
        self._sizes = DecoderSizes.parse(config)
        self._window = whole(config, "sliding_window")
        rope = RopeSettings.parse(config, self._sizes.head_dim, self._sizes.max_positions)
        self._rope, self._embed = Rope(rope, torch.device("cpu")), embed
        self._ids = start["draft_ids"].long()
        self._numbers = torch.full((self._sizes.vocab_size,), -1).index_copy_(
            0, self._ids, torch.arange(len(self._ids))
        )
        self._rows_DE = start["head.weight"].float()
        fixed = ("draft_ids", "head.weight")
        self._weights = {
            name: tensor.float().clone().requires_grad_() for name, tensor in start.items() if name not in fixed
        }
        matrices = [tensor for tensor in self._weights.values() if tensor.dim() > 1]
        norms = [tensor for tensor in self._weights.values() if tensor.dim() == 1]
        self._optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": norms, "weight_decay": 0.0}],
            lr=_LEARNING_RATE,
            betas=(0.9, 0.95),
        )
        self._batches_done = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What `head_file` writes."""
        weights = {name: tensor.detach() for name, tensor in self._weights.items()}
        return {**weights, "head.weight": self._rows_DE, "draft_ids": self._ids}

    @torch.no_grad()
    def begin(self, lessons: Sequence[Lesson], places: int) -> None:
        """Solve for what can be had at once: the linear map of token and state that comes nearest to the next state.

        By least squares, with a little ridge; what attention and feed-forward add to it begins at nothing. On 33,000
        tokens of the demo model's, three seconds of this did as much as two minutes of descent from first guesses.
        """
        hidden = self._sizes.hidden_size
        weights = self._weights
        squares, products = torch.zeros(2 * hidden, 2 * hidden), torch.zeros(2 * hidden, hidden)
        power, count = torch.zeros(hidden), 0.0
        for batch in batches(lessons, places, 1.0):
            counts = batch.weights > 0
            power += batch.states[counts].square().sum(0)
            count += int(counts.sum())
        weights["norm.weight"].copy_((power / max(1.0, count)).sqrt().clamp(min=1e-6))
        for batch in batches(lessons, places, 1.0):
            counts = batch.weights > 0
            given = self._given(self._embedded(batch.tokens), batch.before)[counts]
            squares += given.T @ given
            products += given.T @ (batch.states[counts] / weights["norm.weight"])
        squares.diagonal().add_(_RIDGE * squares.diagonal().mean())
        weights["join.weight"].copy_(torch.linalg.solve(squares, products).T)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"{LAYER}{name}.weight"].zero_()

    def learn(self, batch: Batch, depth: int, share: float) -> float:
        """One step of descent, unrolled to `depth`; `share` of the training is over. Returns the loss."""
        self._batches_done += 1
        cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        for group in self._optimiser.param_groups:
            group["lr"] = _LEARNING_RATE * cosine * min(1.0, self._batches_done / _WARM_UP)
        loss = self.loss(batch, depth)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self._weights.values()), 1.0)
        self._optimiser.step()
        return float(loss.detach())

    def loss(self, batch: Batch, depth: int) -> Tensor:
        """Of a batch, the mean over its places."""
        with torch.no_grad():
            taught_BTD = (batch.states @ self._rows_DE.T).softmax(-1)
            weights = batch.weights * (self._numbers[batch.following] >= 0)  # others are never drafted
        loss = torch.zeros(())
        for step, predicted in enumerate(self.predict(batch.tokens, batch.before, depth)):
            of_tokens = -(taught_BTD * (predicted @ self._rows_DE.T).log_softmax(-1)).sum(-1)
            of_states = functional.smooth_l1_loss(predicted, batch.states, reduction="none").mean(-1)
            at_places = (of_tokens + _STATE_WEIGHT * of_states) * weights
            loss = loss + _STEP_WEIGHT**step * at_places.sum() / weights.sum().clamp(min=1.0)
        return loss

    @torch.no_grad()
    def acceptance(self, lessons: Sequence[Lesson], depth: int, places: int) -> list[float]:
        """How likely `depth` greedy drafts in a row, and each fewer, stand within the answers of `lessons`."""
        stood, tried = [0] * depth, [0] * depth
        for batch in batches(lessons, places, 0.0):
            counts, stands = batch.weights > 0, batch.weights > 0
            for step, predicted in enumerate(self.predict(batch.tokens, batch.before, depth)):
                if step:
                    counts, stands = _later(counts), _later(stands)
                counts = counts & (batch.weights > 0)
                stands = stands & counts
                stands &= self._ids[(predicted @ self._rows_DE.T).argmax(-1)] == batch.following
                stood[step] += int(stands.sum())
                tried[step] += int(counts.sum())
        return [right / max(1, of) for right, of in zip(stood, tried, strict=True)]

    def predict(self, tokens_BT: Tensor, before_BTE: Tensor, depth: int) -> list[Tensor]:
        """States [B, T, E] as the head predicts them: of true states before, of its own, and so on, `depth` times."""
        weights = self._weights
        embedded = self._embedded(tokens_BT)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        predicted: list[Tensor] = []
        for step in range(depth):
            state = before_BTE if not step else _later(predicted[-1])
            x = functional.linear(self._given(embedded, state), weights["join.weight"])
            normed = self._norm(f"{LAYER}input_layernorm", x)
            query, key, value = (self._heads(normed, name) for name in ("q", "k", "v"))
            keys.append(key)
            values.append(value)
            x = x + functional.linear(self._mix(query, keys, values), weights[f"{LAYER}self_attn.o_proj.weight"])
            normed = self._norm(f"{LAYER}post_attention_layernorm", x)
            gate, up = (functional.linear(normed, weights[f"{LAYER}mlp.{name}_proj.weight"]) for name in ("gate", "up"))
            inner = self._sizes.activation(gate) * up
            x = x + functional.linear(inner, weights[f"{LAYER}mlp.down_proj.weight"])
            predicted.append(self._norm("norm", x))
        return predicted

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        """Normed [B, T, E]."""
        return self._norm("token_norm", self._embed(tokens_BT.flatten()).view(*tokens_BT.shape, -1))

    def _given(self, embedded_BTE: Tensor, before_BTE: Tensor) -> Tensor:
        """What the join joins [B, T, 2 E]."""
        return torch.cat((embedded_BTE, self._norm("state_norm", before_BTE)), -1)

    def _mix(self, query_BTHD: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """Attention at the last of several steps, whose keys and values these are [B, T, H, D].

        The chain of guesses that a place is in began as many places before as there were steps: up to there the keys
        are of true states, and from there on each is of a step later than the one before it.
        """
        step, count = len(keys) - 1, query_BTHD.shape[1]
        distance = torch.arange(count)[:, None] - torch.arange(count)
        is_seen = (distance >= step) & (distance < self._window)
        scores = torch.einsum("bqhd,bkhd->bqhk", query_BTHD, keys[0])
        scores = scores.masked_fill(~is_seen[:, None], -torch.inf)
        chain = range(1, step + 1)
        of_chain = [(query_BTHD * _later(keys[at], step - at)).sum(-1, keepdim=True) for at in chain]
        shares = (torch.cat((scores, *of_chain), -1) * self._sizes.head_dim**-0.5).softmax(-1)
        mixed = torch.einsum("bqhk,bkhd->bqhd", shares[..., :count], values[0])
        for at in chain:
            mixed = mixed + shares[..., count + at - 1, None] * _later(values[at], step - at)
        return mixed.flatten(2)

    def _heads(self, normed_BTE: Tensor, name: str) -> Tensor:
        """Queries, keys or values by head [B, T, H, D], turned where they are, as many as there are queries."""
        sizes, (rows, places) = self._sizes, normed_BTE.shape[:2]
        x = functional.linear(normed_BTE, self._weights[f"{LAYER}self_attn.{name}_proj.weight"])
        x = x.view(rows, places, -1, sizes.head_dim)
        if name != "v":
            x = turn(x, self._rope.angles(torch.arange(places), x.dtype))
        return x if name == "q" else x.repeat_interleave(sizes.q_heads // sizes.kv_heads, 2)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._sizes.norm_eps)


def _later(x_BT: Tensor, places: int = 1) -> Tensor:
    """[B, T, ...] moved on by so many places, zeros (or false) before."""
    if not places:
        return x_BT
    return torch.cat((torch.zeros_like(x_BT[:, :places]), x_BT[:, :-places]), 1)
