"""The llm library: a prompt, streamed as it does by itself and whole, and a schema."""

import json
import os
import pathlib
import sys
import tempfile

given = json.load(sys.stdin)
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "extra-openai-models.yaml").write_text(
    f"""- model_id: local
  model_name: {given["model"]}
  api_base: "{given["url"]}/v1"
  supports_schema: true
"""
)
os.environ["LLM_USER_PATH"] = str(folder)
import llm  # noqa: E402 - it reads the variable when it is imported

model = llm.get_model("local")
model.key = "none"
streamed = model.prompt("Name three primary colors.", temperature=0, max_tokens=24)
pieces = list(streamed)
whole = model.prompt("Name three primary colors.", temperature=0, max_tokens=24, stream=False).text()
schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}
dog = model.prompt("Invent a dog.", schema=schema, temperature=0, max_tokens=300).text()
print(json.dumps({"pieces": pieces, "whole": whole, "dog": dog}))
