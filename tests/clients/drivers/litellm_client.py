"""litellm: chat by two of its routes, streamed and whole, and text completions."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices, and waits
import litellm  # after the variable, which it reads when it is imported

given = json.load(sys.stdin)
question = [{"role": "user", "content": "Name three primary colors."}]
common = {"api_base": given["url"] + "/v1", "api_key": "none", "num_retries": 0, "temperature": 0}
found = {}
for route in ("openai", "hosted_vllm"):
    name = f"{route}/{given['model']}"
    whole = litellm.completion(model=name, messages=question, max_tokens=24, **common)
    chunks = list(
        litellm.completion(
            model=name, messages=question, max_tokens=24, stream=True, stream_options={"include_usage": True}, **common
        )
    )
    found[route] = {
        "whole": whole.choices[0].message.content,
        "pieces": [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices],
        "usage": [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)],
    }
text = litellm.text_completion(
    model=f"text-completion-openai/{given['model']}", prompt="The capital of France is", max_tokens=8, **common
)
found["text"] = text.choices[0].text
vectors = litellm.embedding(
    model=f"openai/{given['model']}", input=["red", "blue"], api_base=common["api_base"], api_key="none"
)
found["vectors"] = [len(item["embedding"]) for item in vectors.data]
print(json.dumps(found))
