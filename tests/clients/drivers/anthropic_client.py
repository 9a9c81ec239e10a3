"""The anthropic client: messages whole and streamed, count_tokens, tools."""

import json
import sys

from anthropic import Anthropic, BadRequestError

given = json.load(sys.stdin)
client = Anthropic(base_url=given["url"], api_key="none", max_retries=0, timeout=120)
question = [{"role": "user", "content": "Name three primary colors."}]
greedy = {"temperature": 0}  # the client has no argument for it any more
asked = {"model": given["model"], "max_tokens": 24, "messages": question, "system": "Be brief.", "extra_body": greedy}

whole = client.messages.create(**asked)
with client.messages.stream(**asked) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()
count = client.messages.count_tokens(model=given["model"], messages=question, system="Be brief.")
stopped = client.messages.create(**{**asked, "stop_sequences": ["e"]})
tool = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}
called = client.messages.create(
    **{**asked, "max_tokens": 200}, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}
)
try:
    client.messages.create(**{**asked, "max_tokens": 0})
    refused = None
except BadRequestError as error:
    refused = error.body
print(
    json.dumps(
        {
            "whole": whole.model_dump(mode="json"),
            "pieces": pieces,
            "final": final.model_dump(mode="json"),
            "count": count.input_tokens,
            "stopped": stopped.model_dump(mode="json"),
            "called": called.model_dump(mode="json"),
            "refused": refused,
        }
    )
)
