"""What the control plane reads of a model's files: its text, sampling defaults, vocabulary, and how it wants pooling.

The engine asks once at start, while the executor loads the weights of the same files.

INVARIANT: everything that the files say and that would change an answer is here or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncpage.config import EngineConfig
from asyncpage.errors import ModelError, UsageError
from asyncpage.formats.sentence_model import read_sentence_model
from asyncpage.grammar.control import told_bytes
from asyncpage.house import Text
from asyncpage.messages import LearnVocabulary, Pooling
from asyncpage.records import record
from asyncpage.text.chat_template import Parsers, load_chat_template
from asyncpage.text.generation import generation_defaults
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary_source import load_vocabulary


@record(frozen=True, slots=True)
class ModelFiles:
    """`defaults`: by `SamplingParams` field. `pooling`: None where the files do not say.

    `vocabulary`: what an executor needs to know of it to follow grammars; None where there is no model.
    """

    text: Text
    defaults: Mapping[str, Any]
    pooling: Pooling | None = None
    vocabulary: LearnVocabulary | None = None


def read_model_files(path: Path, config: EngineConfig, draft: Path | None = None) -> ModelFiles:
    """Read the GGUF file or folder `path`; takes a second. `draft`: the model that guesses, if any.

    Errors: `ModelError` for what is not supported, `FormatError` when a file is malformed, `UsageError` for a draft
    model with another vocabulary.
    """
    vocabulary = load_vocabulary(path)
    template = load_chat_template(path, config.chat_template, vocabulary=vocabulary, parsers=Parsers.of(config))
    defaults = generation_defaults(path) if config.generation_config == "auto" else {}
    sentences = read_sentence_model(path)
    if sentences.lowers_text and not (vocabulary.word_pieces is not None and vocabulary.word_pieces.lowers):
        raise ModelError(f"{path}: texts are to be in lower case, and its tokenizer does not bring them to it")
    tokenizer = Tokenizer(vocabulary)
    if draft is not None:
        _check_draft(tokenizer, draft)
    return ModelFiles(Text(tokenizer, template), defaults, sentences.pooling, _lesson(tokenizer))


def _check_draft(tokenizer: Tokenizer, draft: Path) -> None:
    """Ids that only one of the two has are no matter: some models pad their tables. Errors: `UsageError`."""
    other = Tokenizer(load_vocabulary(draft))
    for id, (own, theirs) in enumerate(zip(tokenizer.bytes_by_id, other.bytes_by_id, strict=False)):
        if own != theirs:
            raise UsageError(
                f"--draft-model {draft} has another vocabulary: token {id} is {theirs!r} there and {own!r} in the "
                "model; name one with the same tokenizer"
            )


def _lesson(tokenizer: Tokenizer) -> LearnVocabulary:
    """Control tokens stand for what a grammar calls them by."""
    special = tokenizer.special_ids
    told = [told_bytes(data, is_control=id in special) for id, data in enumerate(tokenizer.bytes_by_id)]
    return LearnVocabulary(b"".join(told), np.array(list(map(len, told)), dtype=np.int32))
