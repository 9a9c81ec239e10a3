"""langchain-openai: chat, stream, a bound tool and its result, structured output, the completion class, embeddings."""

import json
import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

given = json.load(sys.stdin)
url, model = given["url"] + "/v1", given["model"]
common = {"base_url": url, "api_key": "none", "model": model, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(max_tokens=24, **common)


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


answer = chat.invoke("Name three primary colors.")
pieces = [str(chunk.content) for chunk in chat.stream("Name three primary colors.")]
long_chat = ChatOpenAI(max_tokens=300, **common)
person = long_chat.with_structured_output(Person).invoke("Make up a person called Ada, aged 36.")
asked = HumanMessage("What is 6 times 7?")
called = long_chat.bind_tools([multiply], tool_choice="any", parallel_tool_calls=False).invoke([asked])
told = chat.bind_tools([multiply]).invoke([asked, called, multiply.invoke(called.tool_calls[0])])
text = OpenAI(max_tokens=8, **common).invoke("The capital of France is")
embeddings = OpenAIEmbeddings(base_url=url, api_key="none", model=model, check_embedding_ctx_length=False)
vectors = embeddings.embed_documents(["red", "blue"])
print(
    json.dumps(
        {
            "answer": str(answer.content),
            "usage": answer.usage_metadata,
            "pieces": pieces,
            "person": person.model_dump(),
            "calls": called.tool_calls,
            "told": {"content": str(told.content), "usage": told.usage_metadata},
            "text": text,
            "vectors": [len(vector) for vector in vectors],
        }
    )
)
