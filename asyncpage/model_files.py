"""What a model's files say beside its weights, read by the engine while the executor loads.

INVARIANT: nothing here is read twice, and nothing of it is read by the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncpage.config import EngineConfig
from asyncpage.house import Text
from asyncpage.messages import LearnVocabulary
from asyncpage.text.chat_template import load_chat_template
from asyncpage.text.generation import generation_defaults
from asyncpage.text.tokenizer import Tokenizer
from asyncpage.text.vocabulary_source import load_vocabulary


def read_model_files(path: Path, config: EngineConfig) -> tuple[Text, Mapping[str, Any], LearnVocabulary]:
    """What the model's files say about text, their sampling defaults, and what grammars need of the vocabulary."""
    vocabulary = load_vocabulary(path)
    template = load_chat_template(path, config.chat_template, vocabulary=vocabulary)
    defaults = generation_defaults(path) if config.generation_config == "auto" else {}
    tokenizer = Tokenizer(vocabulary)
    shown = tokenizer.shown_bytes(skip_special=True)
    lesson = LearnVocabulary(b"".join(shown), np.array(list(map(len, shown)), dtype=np.int32))
    return Text(tokenizer, template), defaults, lesson
