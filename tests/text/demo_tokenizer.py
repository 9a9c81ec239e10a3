"""The demo model's tokenizer in the reference library: an oracle for ours, and what clients count tokens with."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from asyncpage.formats.gguf import GGUFFile


def demo_tokenizer(path: Path) -> Tokenizer:
    """The demo model's vocabulary in the reference library: its merges behind the published pre-tokeniser."""
    file = GGUFFile(path)
    tokens = list(file.metadata["tokenizer.ggml.tokens"])
    merges = [tuple(merge.split(" ")) for merge in file.metadata["tokenizer.ggml.merges"]]
    types = list(file.metadata["tokenizer.ggml.token_type"])
    file.close()
    oracle = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    oracle.decoder = decoders.ByteLevel()
    oracle.add_special_tokens([AddedToken(tokens[id], special=True) for id, kind in enumerate(types) if kind == 3])
    return oracle
