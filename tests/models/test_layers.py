"""Linear maps against float64, whichever side the weights are on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncpage.models import layers


@pytest.mark.parametrize("few_rows", [0, 32], ids=["weights on the right", "weights on the left"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 32, 33])
def test_a_product_is_that_of_float64(
    monkeypatch: pytest.MonkeyPatch, few_rows: int, has_bias: bool, rows: int
) -> None:
    monkeypatch.setattr(layers, "_FEW_ROWS", few_rows)
    draws = np.random.default_rng(rows)
    x_TI, weight_OI, bias_O = draws.normal(size=(rows, 48)), draws.normal(size=(20, 48)), draws.normal(size=20)
    linear = layers.Linear(torch.tensor(weight_OI).float(), torch.tensor(bias_O).float() if has_bias else None)
    made = linear(torch.tensor(x_TI).float())
    assert made.is_contiguous()
    np.testing.assert_allclose(made.numpy(), x_TI @ weight_OI.T + bias_O * has_bias, atol=2e-5, rtol=1e-5)
