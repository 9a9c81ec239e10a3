"""What the house works out before anybody moves in."""

from dataclasses import replace

import pytest

from asyncpage.config import EngineConfig
from asyncpage.errors import UsageError
from asyncpage.house import ACTORS, Text, host_slots, mailboxes, max_model_len, most_open
from asyncpage.messages import LayerGroup
from asyncpage.testing.toy_runner import toy_handshake
from asyncpage.text.byte_alphabet import CHARACTERS
from asyncpage.text.chat_template import ChatTemplate
from asyncpage.text.pieces import GPT2, Splitting
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary import AddedToken, Vocabulary

TWO_GROUPS = (LayerGroup("full", 0, 1), LayerGroup("window", 8, 1))


def test_the_longest_request_is_what_the_model_takes_and_the_whole_pool_holds() -> None:
    config = EngineConfig()
    assert max_model_len(config, toy_handshake(blocks=64, block_size=4, max_model_len=128)) == 128
    assert max_model_len(config, toy_handshake(blocks=21, block_size=4, max_model_len=128)) == 80
    # 20 usable blocks make ten entries of four tokens in each of two groups.
    assert max_model_len(config, toy_handshake(blocks=21, block_size=4, max_model_len=128, groups=TWO_GROUPS)) == 40


def test_without_chunked_prefill_a_step_must_take_the_longest_prompt() -> None:
    config = EngineConfig(enable_chunked_prefill=False, max_num_seqs=8, max_num_batched_tokens=100)
    with pytest.raises(UsageError, match="--max-num-batched-tokens to 128"):
        max_model_len(config, toy_handshake(max_model_len=128))
    assert max_model_len(config, toy_handshake(max_model_len=100)) == 100


def test_every_actors_mailbox_holds_all_that_may_be_open_at_once() -> None:
    config = EngineConfig(max_queue=3, max_num_seqs=2)
    boxes = mailboxes(config)
    assert tuple(boxes) == (*ACTORS, "archive")
    assert most_open(config) == 10
    assert all(box.capacity >= 4 * 10 for box in boxes.values())


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 0),
        ({"kv_offload_gb": 0.5}, 10_922),
        ({"kv_dir": "/d"}, 5_461),
        ({"kv_offload_gb": 1, "kv_dir": "/d"}, 21_845),
    ],
)
def test_the_host_tier_has_as_many_slots_as_blocks_fit_the_memory(settings: dict[str, object], slots: int) -> None:
    handshake = replace(toy_handshake(blocks=64), kv_bytes=64 * 49_152)
    assert host_slots(EngineConfig(**settings), handshake) == slots


def test_a_host_tier_that_holds_no_block_is_refused() -> None:
    with pytest.raises(UsageError, match="a KV block takes 4096 bytes"):
        host_slots(EngineConfig(kv_offload_gb=1e-6), replace(toy_handshake(blocks=4), kv_bytes=4 * 4096))


def test_a_tokenizer_is_described_in_the_words_of_its_configuration_file() -> None:
    vocabulary = Vocabulary(
        source="test",
        tokens=(*CHARACTERS, "<s>", "</s>"),
        merges=lambda: iter(()),
        added=(AddedToken(256, "<s>"), AddedToken(257, "</s>")),
        splitting=Splitting(GPT2),
        prefix_ids=(256,),
        bos_id=256,
        end_ids=(257,),
        named={"bos_token": "<s>", "eos_token": "</s>"},
        templates={"default": "{{ bos_token }}{{ messages[0].content }}"},
    )
    found = Text(Tokenizer(vocabulary), ChatTemplate(vocabulary.templates, vocabulary)).describe()
    assert found == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": None,
        "unk_token": None,
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    assert Text(Tokenizer(vocabulary), None).describe()["chat_template"] is None
