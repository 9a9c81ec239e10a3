"""Rotary scaling against transformers' own functions, and in closed form where they have none."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from asyncpage.errors import ModelError
from asyncpage.models.rope import Rope, RopeSettings, turn

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SHORT = [1.0 + at / 7 for at in range(32)]


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3", **LLAMA3},
        {"rope_type": "llama3", **LLAMA3, "factor": 32.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "truncate": False},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
        },
        {"rope_type": "yarn", "factor": 16.0, "attention_factor": 0.9, "original_max_position_embeddings": 4096},
        {
            "rope_type": "longrope",
            "short_factor": SHORT,
            "long_factor": SHORT[::-1],
            "original_max_position_embeddings": 4096,
        },
    ],
    ids=lambda scaling: "-".join(map(str, list(scaling.values())[:2])),
)
def test_frequencies_are_those_of_transformers(scaling):
    parameters = {"rope_theta": 10000.0, **scaling}
    theirs = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(parameters)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    for config in ({"rope_parameters": parameters}, {"rope_theta": 10000.0, "rope_scaling": scaling}):
        found, found_factor = RopeSettings.parse(config, 64, 131072).frequencies()
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
        assert found_factor == pytest.approx(factor, rel=1e-6)


def test_the_older_spelling_of_the_kind_is_understood():
    settings = RopeSettings.parse({"rope_scaling": {"type": "linear", "factor": 2.0}}, 64, 4096)
    assert settings.kind == "linear"
    assert settings.theta == 10000.0


def test_a_turn_rotates_pairs_half_a_head_apart_by_the_position():
    settings = RopeSettings.parse({"rope_theta": 100.0}, 4, 64)
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]], [[0.0, 3.0, 1.0, 0.0]]])
    found = turn(x, Rope(settings, torch.device("cpu")).angles(torch.tensor([3, 5]), torch.float32))
    slow = 100.0**-0.5
    expected = [
        [math.cos(3), -2 * math.sin(3 * slow), math.sin(3), 2 * math.cos(3 * slow)],
        [-math.sin(5), 3 * math.cos(5 * slow), math.cos(5), 3 * math.sin(5 * slow)],
    ]
    torch.testing.assert_close(found[:, 0], torch.tensor(expected))


@pytest.mark.parametrize("place", ["config", "scaling"])
def test_a_partial_rotation_turns_the_first_items_and_passes_the_rest(place):
    share = {"partial_rotary_factor": 0.5}
    config = share if place == "config" else {"rope_parameters": {"rope_type": "default", **share}}
    x = torch.randn(5, 3, 16)
    positions = torch.tensor([0, 1, 7, 30, 2])
    cpu = torch.device("cpu")
    found = turn(x, Rope(RopeSettings.parse(config, 16, 64, may_be_partial=True), cpu).angles(positions, torch.float32))
    whole = turn(x[..., :8], Rope(RopeSettings.parse({}, 8, 64), cpu).angles(positions, torch.float32))
    assert torch.equal(found, torch.cat((whole, x[..., 8:]), -1))


def test_scores_depend_on_the_distance_of_positions_only():
    rope = Rope(RopeSettings.parse({}, 32, 4096), torch.device("cpu"))
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def score(at, back):
        angles = rope.angles(torch.tensor([at, at - back]), torch.float32)
        turned = turn(torch.cat((q, k)), angles)
        return float(turned[0, 0] @ turned[1, 0])

    assert score(40, 9) == pytest.approx(score(2000, 9), abs=1e-3)


def test_kinds_that_change_with_length_serve_the_trained_context_only():
    lists = {"short_factor": SHORT, "long_factor": SHORT[::-1], "original_max_position_embeddings": 4096}
    assert RopeSettings.parse({"rope_scaling": {"rope_type": "longrope", **lists}}, 64, 8192).usable_positions == 4096
    lists["long_factor"] = SHORT
    assert RopeSettings.parse({"rope_scaling": {"rope_type": "longrope", **lists}}, 64, 8192).usable_positions == 8192


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rope_scaling": {"rope_type": "mrope"}}, r"rope scaling 'mrope' is not supported; default, linear"),
        ({"rope_scaling": {"type": "linear"}}, r"rope scaling 'linear' needs factor"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, r"factor must be a positive number, found -1"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"rope scaling 'llama3' needs low_freq_factor"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            r"high_freq_factor \(1.0\) must exceed low_freq_factor \(1.0\)",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": SHORT}}, r"needs 32 numbers in long_factor"),
        ({"rope_theta": "big"}, r"rope_theta must be a positive number, found 'big'"),
        ({"partial_rotary_factor": 0.05}, r"rope turns 3 of 64 items of a head; that must be an even share"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"one rope scaling for all layers"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:24],
)
def test_scaling_that_cannot_be_computed_is_refused_by_name(config, text):
    with pytest.raises(ModelError, match=text):
        RopeSettings.parse(config, 64, 4096, may_be_partial=True)
