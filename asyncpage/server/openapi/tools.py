"""Tools in a chat completion: the functions that the model is offered, and its calls of them.

INVARIANT: the arguments of a call are one JSON text, as the API has it.
"""

from __future__ import annotations

from asyncpage.server.generate.template_fields import MAX_NAME
from asyncpage.server.generate.tool_fields import MAX_DESCRIPTION, MAX_TOOLS, NAME
from asyncpage.server.openapi.schema import Json, answer, any_of, array, boolean, ref, refused, request, string, word

TOOL_NAME = string("How the model calls it.", pattern=f"^{NAME}$", examples=["get_weather"])
PARAMETERS: Json = {
    "type": "object",
    "description": "A JSON Schema of its arguments; none when left out.",
    "examples": [{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
}
ABOUT: dict[str, Json] = {
    "name": TOOL_NAME,
    "description": string(
        "What it does, for the model.", maxLength=MAX_DESCRIPTION, examples=["The weather of a city."]
    ),
    "strict": boolean("Hold calls to the schema, also where the model chooses to call.", examples=[True]),
}
_NAMED = request(
    {"type": word("", "function"), "function": request({"name": TOOL_NAME}, "name")},
    "type",
    "function",
)

CALLED = request(
    {
        "name": string(maxLength=MAX_NAME, examples=["get_weather"]),
        "arguments": any_of("JSON, as a text.", string(examples=['{"city": "Oslo"}']), {"type": "object"}),
    },
    "name",
)

SCHEMAS: dict[str, Json] = {
    "Tool": request(
        {"type": word("", "function"), "function": request({**ABOUT, "parameters": PARAMETERS}, "name")},
        "type",
        "function",
    ),
    "ToolCall": request(
        {
            "id": string("Named by the tool message that answers it.", maxLength=MAX_NAME, examples=["call_1"]),
            "type": word("", "function"),
            "function": CALLED,
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

# Of these the prompt is made.
OFFERED: dict[str, Json] = {
    "tools": array(ref("Tool"), "Functions that the model may call.", high=MAX_TOOLS),
    "tool_choice": any_of(
        "Whether the model may, must or may not call tools, which one it must call, or among which ones it has the "
        "choice.",
        word("", "none", "auto", "required"),
        _NAMED,
        request(
            {
                "type": word("", "allowed_tools"),
                "allowed_tools": request(
                    {"mode": word("", "auto", "required"), "tools": array(_NAMED, low=1)}, "mode", "tools"
                ),
            },
            "type",
            "allowed_tools",
        ),
        examples=["auto"],
    ),
    "parallel_tool_calls": boolean("False: at most one call.", examples=[True]),
}

FIELDS: dict[str, Json] = {
    **OFFERED,
    "functions": refused("the older form of tools; send tools"),
    "function_call": word("The older form of tool_choice.", "none", "auto"),
}
