"""Where a vocabulary is read from: a GGUF file or a model folder.

The tokenizer and the chat template begin here.

INVARIANT: a path that is neither is refused, never probed for what it might be.
"""

from __future__ import annotations

from pathlib import Path

from asyncpage.errors import ModelError
from asyncpage.text.folder_vocabulary import read_folder_vocabulary
from asyncpage.text.gguf_vocabulary import read_gguf_vocabulary
from asyncpage.text.vocabulary import Vocabulary


def load_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, or of a folder with `tokenizer.json`.

    Errors: `ModelError` naming a kind that is not supported, `FormatError` when a file is malformed.
    """
    if path.is_dir():
        return read_folder_vocabulary(path)
    if path.suffix.lower() == ".gguf":
        return read_gguf_vocabulary(path)
    raise ModelError(f"{path}: a tokenizer is read from a .gguf file or from a folder with tokenizer.json")
