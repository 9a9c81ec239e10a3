"""instructor: one typed answer in each of its modes that OpenAI's servers know."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

given = json.load(sys.stdin)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


found = {}
for mode in ("TOOLS", "JSON_SCHEMA"):
    client = instructor.from_openai(
        OpenAI(base_url=given["url"] + "/v1", api_key="none", max_retries=0), mode=instructor.Mode[mode]
    )
    person = client.chat.completions.create(
        model=given["model"],
        response_model=Person,
        messages=[{"role": "user", "content": "Ada is 36 years old."}],
        max_tokens=300,
        temperature=0,
    )
    found[mode] = person.model_dump()
print(json.dumps(found))
