"""GGUF metadata as a vocabulary: the kinds that are known, and refusals by name for all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import GGUFWriter

from asyncpage.errors import FormatError, ModelError
from asyncpage.text.gguf_vocabulary import vocabulary_of_metadata
from asyncpage.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture
def metadata(small_json: dict[str, Any]) -> dict[str, Any]:
    vocab = small_json["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in small_json["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, "<|eot_id|>", "<think>", "[PAD]"],
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2) + [3, 4, 5],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.chat_template": "{{ messages }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }


def load(metadata: dict[str, Any], **changes: Any) -> Tokenizer:
    changed = {**metadata, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return Tokenizer(vocabulary_of_metadata("model.gguf", changed))


def test_the_keys_become_the_tokenizer_that_they_describe(metadata: dict[str, Any], small_json: dict[str, Any]) -> None:
    mine = load(metadata)
    oracle = tokenizers.Tokenizer.from_str(json.dumps(small_json))
    text = "The quick brown fox 123 é 你 <s> end"
    assert mine.encode(text) == oracle.encode(text).ids
    size = len(metadata["tokenizer.ggml.tokens"])
    assert mine.vocab_size == size
    assert mine.special_ids == {0, 1, size - 3}
    # The turn's end that no key names ends an answer too.
    assert mine.eos_ids == (1, size - 3)
    assert mine.encode("<think>", parse_special=False) == [size - 2]
    assert size - 1 not in mine.encode("[PAD]")


@pytest.mark.parametrize(
    ("pre", "adds_bos"),
    [
        *[("gpt-2", False), ("smollm", False), ("qwen2", False), ("llama-bpe", True), ("llama3", True)],
        *[("tekken", True), ("dbrx", False), ("smaug-bpe", False), ("gpt-4o", False), ("deepseek-v3", False)],
    ],
)
def test_a_text_begins_with_bos_where_the_kind_or_the_key_says_so(
    metadata: dict[str, Any], pre: str, adds_bos: bool
) -> None:
    assert load(metadata, pre=pre).add_bos is adds_bos
    assert load(metadata, pre=pre, add_bos_token=not adds_bos).add_bos is not adds_bos
    assert load(metadata, pre=pre, add_eos_token=True).encode("a")[-1] == 1


def test_templates_are_kept_by_name(metadata: dict[str, Any]) -> None:
    vocabulary = vocabulary_of_metadata("model.gguf", metadata)
    assert vocabulary.templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert vocabulary.named == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gemma4"}, "tokenizer model 'gemma4' is not supported; supported are gpt2"),
        ({"model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"model": None}, r"has no tokenizer\.ggml\.model"),
        ({"pre": "falcon"}, "pre-tokenizer 'falcon' is not supported; supported are gpt-2"),
        ({"pre": "default"}, "pre-tokenizer 'default' is not supported"),
        ({"pre": None}, r"has no tokenizer\.ggml\.pre"),
    ],
)
def test_an_unknown_kind_is_refused_by_name(metadata: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(metadata, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre": 3},
        {"tokens": "abc"},
        {"tokens": [1, 2]},
        {"token_type": [1]},
        {"token_type": None},
        {"merges": None},
        {"merges": ["ab"]},
        {"merges": ["a b c"]},
        {"eos_token_id": 10**6},
        {"bos_token_id": "x"},
        {"add_bos_token": "yes"},
    ],
)
def test_a_malformed_key_is_refused_by_name(metadata: dict[str, Any], changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.{key}"):
        load(metadata, **changes)


@pytest.fixture
def sentences(sentence_json: dict[str, Any]) -> dict[str, Any]:
    """The same for a vocabulary of SentencePiece's kind; scores fall as merges become less urgent."""
    vocab = sentence_json["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    scores: dict[str, float] = {}
    for rank, merge in enumerate(sentence_json["model"]["merges"]):
        scores.setdefault("".join(merge), -float(rank))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*tokens, "<|end|>", "[PAD]"],
        "tokenizer.ggml.scores": [*(scores.get(token, 0.0) for token in tokens), -1000.0, -1000.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259), 3, 5],
    }


def test_scores_become_the_tokenizer_that_the_merges_describe(
    sentences: dict[str, Any], sentence_json: dict[str, Any]
) -> None:
    mine = load(sentences)
    oracle = tokenizers.Tokenizer.from_str(json.dumps(sentence_json))
    for text in ("The quick brown fox 123 é 你 <s> end", "", " ", "a</s> b", "<unk>\n"):
        assert mine.encode(text, add_special=False) == oracle.encode(text).ids
    # What the keys leave out is what the first models of this kind had.
    size = mine.vocab_size
    assert (mine.bos_id, mine.add_bos, mine.eos_ids) == (1, True, (2, size - 2))
    assert mine.named == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert mine.decode(mine.encode(" a b")) == " a b"
    assert load(sentences, add_space_prefix=False).decode([*mine.encode("é", add_special=False)]) == " é"


def test_a_file_with_scores_is_read_as_its_keys_say(sentences: dict[str, Any], tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(sentences["tokenizer.ggml.tokens"])
    writer.add_token_scores(sentences["tokenizer.ggml.scores"])
    writer.add_token_types(sentences["tokenizer.ggml.token_type"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    text = "The quick brown fox 123 é 你 <s> end"
    assert load_tokenizer(tmp_path / "model.gguf").encode(text) == load(sentences).encode(text)


def test_the_end_of_a_turn_is_no_end_where_another_token_says_so(metadata: dict[str, Any]) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    changes = {"tokens": [*tokens[:-3], "<|end|>", "<|return|>", "[PAD]"]}
    kinds = metadata["tokenizer.ggml.token_type"]
    assert load(metadata, **changes, token_type=[*kinds[:-3], 3, 1, 5]).eos_ids == (1, len(tokens) - 3)
    assert load(metadata, **changes, token_type=[*kinds[:-3], 3, 3, 5]).eos_ids == (1,)


def test_a_phi_3s_control_tokens_swallow_the_white_space_behind_them(sentences: dict[str, Any]) -> None:
    for architecture, swallows in (("phi3", True), ("llama", False)):
        mine = load({**sentences, "general.architecture": architecture})
        end = mine.vocab_size - 2
        assert (mine.encode("<|end|> \n", add_special=False) == [end]) is swallows
        assert mine.encode("<s>\n", add_special=False)[1:] == mine.encode("\n", add_special=False)


@pytest.mark.parametrize(
    "changes",
    [{"pre": "llama-bpe"}, {"remove_extra_whitespaces": True}, {"precompiled_charsmap": [1, 2]}],
)
def test_what_would_change_the_ids_of_scores_is_refused_by_name(
    sentences: dict[str, Any], changes: dict[str, Any]
) -> None:
    (key,) = changes
    with pytest.raises(ModelError, match=rf"tokenizer\.ggml\.{key}.* is not supported"):
        load(sentences, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": None},
        {"scores": [1.0]},
        {"scores": "abc"},
        {"scores": [float("nan")] * 10},
        {"add_space_prefix": 1},
        {"unknown_token_id": 10**6},
    ],
)
def test_a_malformed_key_of_scores_is_refused_by_name(sentences: dict[str, Any], changes: dict[str, Any]) -> None:
    (key,) = changes
    with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.{key}"):
        load(sentences, **changes)


def test_a_token_too_long_to_look_at_every_way_to_make_it_is_refused(sentences: dict[str, Any]) -> None:
    tokens = [*sentences["tokenizer.ggml.tokens"]]
    tokens[-3] = "a" * 512
    assert load(sentences, tokens=tokens).token_bytes(len(tokens) - 3) == b"a" * 512
    tokens[-3] += "a"
    with pytest.raises(FormatError, match=r"tokens.*has a token of 513 characters, at most 512"):
        load(sentences, tokens=tokens)
