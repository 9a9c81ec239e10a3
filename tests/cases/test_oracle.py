"""The oracle of the cases against another one: transformers on the same folder."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaForCausalLM

from tests.cases.model_folder import Model
from tests.cases.oracle import CLOSE, Oracle


def test_the_plain_forward_pass_is_that_of_transformers(tiny: Model, oracle: Oracle) -> None:
    other = LlamaForCausalLM.from_pretrained(tiny.folder, dtype=torch.float64).eval()
    tokens = [3 + (place * place * 31) % 490 for place in range(70)]
    with torch.no_grad():
        expected = other(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert np.abs(oracle.logits(tokens) - expected).max() < CLOSE / 10  # it norms and turns in float32
