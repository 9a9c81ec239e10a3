"""pydantic-ai: typed output by a required tool, its default, and by a JSON schema; plain text streamed."""

import asyncio
import json
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

given = json.load(sys.stdin)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


async def main() -> dict:
    model = OpenAIChatModel(given["model"], provider=OpenAIProvider(base_url=given["url"] + "/v1", api_key="none"))
    settings = ModelSettings(temperature=0, max_tokens=300, parallel_tool_calls=False)
    by_tool = await Agent(model, output_type=Person, model_settings=settings).run("Ada is 36 years old.")
    native = await Agent(model, output_type=NativeOutput(Person), model_settings=settings).run("Ada is 36 years old.")
    plain = Agent(model, model_settings=ModelSettings(temperature=0, max_tokens=24))
    async with plain.run_stream("Name three primary colors.") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True)]
    whole = await plain.run("Name three primary colors.")
    return {
        "tool": by_tool.output.model_dump(),
        "native": native.output.model_dump(),
        "pieces": pieces,
        "whole": whole.output,
    }


print(json.dumps(asyncio.run(main())))
