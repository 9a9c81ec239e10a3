"""Which configs become models, what the others are told, and how families of others are found."""

import importlib.metadata
import sys

import pytest
import torch

from asyncpage.core import plugin_group
from asyncpage.errors import ModelError, UsageError
from asyncpage.models.llama import Llama
from asyncpage.models.registry import BUILT_IN, FAMILIES, build_model, find_family, is_encoder

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2}


def weights(name):
    shapes = {
        "embed_tokens": (11, 8),
        "norm": (8,),
        "_layernorm": (8,),
        "gate_proj": (12, 8),
        "up_proj": (12, 8),
        "down_proj": (8, 12),
        "_proj": (8, 8),
    }
    return torch.zeros(next(shape for part, shape in shapes.items() if f"{part}.weight" in name))


def build(**changes):
    config = {name: value for name, value in {**CONFIG, **changes}.items() if value is not ...}
    return build_model(config, weights, torch.float32, "cpu")


def test_key_heads_default_to_query_heads_and_the_head_size_follows():
    spec = build().specs("float16", 32)[0]
    assert (spec.q_heads, spec.kv_heads, spec.head_dim) == (2, 2, 4)
    assert (spec.dtype, spec.kv_dtype, spec.block_size) == ("float32", "float16", 32)


def test_the_model_type_serves_where_no_architecture_is_named():
    model = build(architectures=..., model_type="mistral", num_key_value_heads=2, sliding_window=7)
    assert [group.window for group in model.groups] == [7]


def test_llama_ignores_a_sliding_window_as_its_family_does():
    assert [group.window for group in build(sliding_window=7).groups] == [0]


def test_the_context_limit_is_the_configs():
    assert build().max_model_len == 32
    assert build().vocab_size == 11


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"architectures": ["WhaleForCausalLM"]},
            r"architecture WhaleForCausalLM of model type 'llama' is not supported; supported are Llama",
        ),
        ({"architectures": [], "model_type": "whale"}, r"model type 'whale' is not supported"),
        ({"hidden_size": ...}, r"hidden_size is missing"),
        ({"vocab_size": -3}, r"vocab_size must be a positive whole number, found -3"),
        ({"num_hidden_layers": "two"}, r"num_hidden_layers must be a positive whole number, found 'two'"),
        ({"num_hidden_layers": True}, r"num_hidden_layers must be a positive whole number, found True"),
        ({"num_attention_heads": 3}, r"hidden_size \(8\) is no multiple of num_attention_heads \(3\)"),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 3},
            r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
        ),
        ({"hidden_act": "spiral"}, r"hidden_act 'spiral' is not supported; silu, swish, gelu"),
        ({"rms_norm_eps": "tiny"}, r"rms_norm_eps must be a small positive number, found 'tiny'"),
        ({"head_dim": 1 << 24}, r"2 heads of 16777216 items are more than any model has"),
        ({"is_causal": False}, r"is_causal False is not supported by this model type; True is"),
        ({"rope_scaling": {"rope_type": "spiral"}}, r"rope scaling 'spiral' is not supported"),
        (
            {**MISTRAL, "sliding_window": 4, "layer_types": ["chunked_attention"]},
            r"layer type 'chunked_attention' is not supported",
        ),
        (
            {**MISTRAL, "sliding_window": 4, "layer_types": []},
            None,
        ),
        (
            {
                **MISTRAL,
                "sliding_window": 4,
                "layer_types": ["full_attention", "full_attention"],
            },
            r"layer_types names 2 layers, num_hidden_layers is 1",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:30],
)
def test_a_config_that_cannot_run_is_refused_by_field(changes, text):
    if text is None:
        assert build(**changes).groups[0].window == 4
        return
    with pytest.raises(ModelError, match=text):
        build(**changes)


def test_an_architecture_of_another_model_type_is_refused():
    with pytest.raises(ModelError, match=r"MistralForCausalLM of model type 'llama' is not supported"):
        build(architectures=["MistralForCausalLM"])
    assert build(architectures=["Unknown", "LlamaForCausalLM"]).max_model_len == 32


class Whale(Llama):
    """A third party's fine family."""

    name = "Whale"
    architectures = ("WhaleForCausalLM",)


class FromTheFuture(Whale):
    api = 2


class Kindless(Whale):
    kind = "oracle"


class Unlisted(Whale):
    architectures = "WhaleForCausalLM"


class Curious(Whale):
    def build(self, config):
        return None


@pytest.fixture
def plugins(monkeypatch):
    """Replaces the installed entry points by the named objects of this module."""

    def install(*pairs):
        monkeypatch.setitem(sys.modules, "plugin_home", sys.modules[Whale.__module__])
        entries = [
            importlib.metadata.EntryPoint(name, value if ":" in value else f"plugin_home:{value}", FAMILIES.group)
            for name, value in pairs
        ]
        monkeypatch.setattr(plugin_group, "entry_points", lambda group: {FAMILIES.group: entries}[group])
        plugin_group.plugins.cache_clear()

    yield install
    plugin_group.plugins.cache_clear()


WHALE = {"architectures": ["WhaleForCausalLM"], "model_type": "whale"}


def test_a_strangers_family_is_found_by_its_entry_point_and_named_among_what_is_supported(plugins):
    plugins(("whale", "Whale"))
    assert build(**WHALE).max_model_len == 32
    assert not is_encoder(WHALE)
    with pytest.raises(ModelError, match=r"DolphinForCausalLM .*BertModel and, by plug-ins, model type whale;"):
        build(architectures=["DolphinForCausalLM"], model_type="dolphin")
    with pytest.raises(ModelError, match=r"WhaleForQuestions of model type 'whale' is not supported"):
        build(architectures=["WhaleForQuestions"], model_type="whale")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("Nowhere", "cannot be loaded: AttributeError"),
        ("nowhere.at.all:Family", "cannot be loaded: ModuleNotFoundError"),
        ("FromTheFuture", "'api' is 2, this asyncpage speaks contract 1; install a newer asyncpage"),
        ("Kindless", "'kind' must be 'decoder' or 'encoder', found 'oracle'"),
        ("Unlisted", "'architectures' must be a tuple of names, found 'WhaleForCausalLM'"),
        ("Curious", "method 'build' does not take (self, config, parameters)"),
    ],
)
def test_a_broken_family_is_refused_by_name_and_stops_only_who_asked_for_it(plugins, target, reason):
    plugins(("whale", target))
    assert build().max_model_len == 32
    with pytest.raises(UsageError) as caught:
        build(**WHALE)
    text = str(caught.value)
    assert text.startswith("Model family 'whale' (")
    assert target in text
    assert reason in text
    assert text.endswith("Mend it or uninstall it.")


def test_nobody_takes_the_model_type_of_a_built_in_family(plugins):
    plugins(("llama", "Whale"))
    with pytest.raises(UsageError, match=r"has more than one owner: asyncpage\.models\.llama:Llama, plugin_home"):
        build()


def test_the_built_in_families_are_there_without_entry_points(plugins):
    plugins()
    for model_type, family in BUILT_IN.items():
        assert type(find_family({"model_type": model_type})) is family


def test_the_installed_package_declares_its_families_as_entry_points():
    declared = {entry.name: entry.load() for entry in importlib.metadata.entry_points(group=FAMILIES.group)}
    assert declared.items() >= BUILT_IN.items()
