"""Probes around a model's parts: they see the work, and change neither it nor the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from asyncpage.models.labelled import Labelled
from asyncpage.models.layers import Linear
from asyncpage.models.probe import Prober
from tests.models import test_deepseek_v2
from tests.models.tiny import ours
from tests.weights.tiny_models import MODELS


@dataclass
class Diary:
    """Keys in the order in which their parts began, with how deep they lay."""

    entries: list[tuple[int, str]] = field(default_factory=list)
    depth: int = 0

    def enter(self, key: str, path: str) -> None:
        self.entries.append((self.depth, key))
        self.depth += 1

    def leave(self, args: Sequence[Any], result: Any) -> None:
        self.depth -= 1


ORACLES = {
    "deepseek2": lambda: test_deepseek_v2.oracle("queries through a narrow row, experts in groups"),
    "gemma2": MODELS["gemma2"],
    "mixtral": MODELS["mixtral"],
}


@pytest.mark.parametrize("name", ORACLES)
def test_a_probed_model_gives_the_same_numbers_and_the_original_has_no_probe(name: str, paged_model: Any) -> None:
    plain, diary = ours(ORACLES[name]().float()), Diary()
    probed = Prober(diary).probe(plain)
    logits, seen = [], []
    with torch.inference_mode():
        for model in (plain, probed, plain):
            runner = paged_model(model, "cpu")
            sequence = runner.add([3, 14, 15, 92, 6])
            logits.append(torch.cat([runner.step((sequence, 3)), runner.step((sequence, 2))]))
            seen.append(len(diary.entries))
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    assert seen[0] == 0 < seen[1] == seen[2]
    assert diary.depth == 0
    whole = [key for depth, key in diary.entries if depth == 0]
    assert whole == [".specs", ".forward", ".logits", ".forward", ".logits"]
    assert {(1, "layers.1.advance"), (2, "layers.1.attention")} <= set(diary.entries)


def test_parts_that_are_alike_by_number_have_one_path_and_the_tensors_of_all() -> None:
    prober = Prober(Diary())
    model = ours(MODELS["mixtral"]().float())
    prober.probe(model)
    path = "layers.1.feed_forward.experts.experts.*.down"
    assert prober.counts[path] == len(prober.tensors[path]) == 5
    assert prober.classes[path] == "Linear"


def test_labels_follow_a_tensor_through_what_is_made_of_it() -> None:
    a = Labelled.of(["a"], torch.zeros(()).expand(4, 3))
    b = Labelled.of(["b"], torch.zeros(2, 3))
    joined = torch.cat((1.0 + a.to(torch.bfloat16).float(), b))
    assert isinstance(joined, Labelled)
    assert joined.labels == ("a", "b")
    assert joined[:2].view(3, 2).t().labels == ("a", "b")
    assert a.labels == ("a",)
    prober = Prober(Diary())
    inside = prober.probe(Linear(joined)).weight
    assert type(inside) is torch.Tensor
