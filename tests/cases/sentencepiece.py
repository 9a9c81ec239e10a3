"""A model folder with a tokenizer in SentencePiece's style: a dummy prefix, "▁" for the space, bytes as <0xNN>."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cases.chain import EOS, write_chain
from tests.cases.model_folder import Model


def write_sentencepiece(folder: Path) -> Model:
    model = write_chain(folder, {"@lead": [" leading", " x", EOS], "@first": ["word", EOS]})
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    texts = {text: id for text, id in model.ids.items() if not text.startswith(("@", "<"))}
    found["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    found["pre_tokenizer"] = None
    found["post_processor"] = None
    found["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    found["model"]["vocab"] = {
        (text.replace(" ", "▁") if len(text) > 1 else f"<0x{ord(text[0]):02X}>"): id for text, id in texts.items()
    }
    found["model"]["byte_fallback"] = True
    file.write_text(json.dumps(found))
    return model
