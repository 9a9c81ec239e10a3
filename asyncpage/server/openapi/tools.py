"""Tools in a chat completion: the functions that the model is offered, and its calls of them.

INVARIANT: the arguments of a call are one JSON text, as the API has it.
"""

from __future__ import annotations

from asyncpage.server.openapi.schema import Json, answer, any_of, array, boolean, ref, refused, request, string, word
from asyncpage.server.template_fields import MAX_NAME

_FUNCTION = request(
    {
        "name": string("How the model calls it.", maxLength=MAX_NAME, examples=["get_weather"]),
        "description": string("What it does, for the model.", examples=["The weather of a city."]),
        "parameters": {
            "type": "object",
            "description": "A JSON Schema of its arguments; none when left out.",
            "examples": [{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
        },
        "strict": boolean("Hold calls to the schema.", examples=[True]),
    },
    "name",
)

SCHEMAS: dict[str, Json] = {
    "Tool": request({"type": word("", "function"), "function": _FUNCTION}, "type", "function"),
    "ToolCall": request(
        {
            "id": string("Named by the tool message that answers it.", maxLength=MAX_NAME, examples=["call_1"]),
            "type": word("", "function"),
            "function": request(
                {
                    "name": string(maxLength=MAX_NAME, examples=["get_weather"]),
                    "arguments": any_of("JSON, as a text.", string(examples=['{"city": "Oslo"}']), {"type": "object"}),
                },
                "name",
            ),
        },
        "function",
        text="A call that an earlier answer made.",
    ),
    "MadeToolCall": answer(
        {
            "id": string("Send it back in the tool message that answers the call."),
            "type": word("", "function"),
            "function": answer({"name": string(), "arguments": string("JSON, as a text.")}),
        },
        text="A call of a tool.",
    ),
}

FIELDS: dict[str, Json] = {
    "tools": array(ref("Tool"), "Functions that the model may call."),
    "tool_choice": any_of(
        "Whether the model may, must or may not call tools, or which one it must call.",
        word("", "none", "auto", "required"),
        request(
            {"type": word("", "function"), "function": request({"name": string(maxLength=MAX_NAME)}, "name")},
            "type",
            "function",
        ),
        examples=["auto"],
    ),
    "functions": refused("the older form of tools; send tools"),
    "function_call": word("The older form of tool_choice.", "none", "auto"),
}
