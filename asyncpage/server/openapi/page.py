"""The document as a page to read: every route with its fields, its answer and a command to try it with.

`routes` sends it. It is made of the document alone, and complete without a script.

Its links are relative, for proxies that show it elsewhere.

INVARIANT: whatever the document holds is shown as text: nothing in it becomes markup.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from html import escape

from asyncpage.server.openapi.schema import Json

STYLE_PATH = "/docs/style.css"

MOST_SHOWN = 1e6
_METHODS = ("get", "post")


def render(document: Json) -> str:
    """The whole page."""
    return "".join(_page(document))


def _page(document: Json) -> Iterator[str]:
    title = f"{document['info']['title']} {document['info']['version']}: the API"
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<title>{escape(title)}</title><link rel="stylesheet" href="{STYLE_PATH[1:]}"></head><body>'
    yield f"<header><h1>{escape(title)}</h1>{_text(document['info']['description'])}"
    yield '<p>For programs: <a href="openapi.json">/openapi.json</a>, OpenAPI 3.1.</p></header>'
    yield '<nav aria-label="Routes"><ul>'
    for path, method, found in _operations(document):
        yield f'<li><a href="#{found["operationId"]}">{_route(method, path)}</a> {escape(found["summary"])}</li>'
    yield "</ul></nav><main>"
    for tag in document["tags"]:
        yield f"<section><h2>{escape(tag['name'])}</h2>{_text(tag['description'])}"
        for path, method, found in _operations(document):
            if tag["name"] in found["tags"]:
                yield from _operation(document, path, method, found)
        yield "</section>"
    yield "<section><h2>Schemas</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f'<article id="schema-{name}"><h3>{escape(name)}</h3>{_text(schema.get("description", ""))}'
        yield from _fields(schema)
        yield "</article>"
    yield "</section></main></body></html>\n"


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield path, method, methods[method]


def _operation(document: Json, path: str, method: str, found: Json) -> Iterator[str]:
    yield f'<article id="{found["operationId"]}"><h3>{_route(method, path)} {escape(found["summary"])}</h3>'
    yield _text(found.get("description", ""))
    if found.get("security") == []:
        yield "<p>Open: it needs no key.</p>"
    yield f"<pre><code>{escape(_curl(path, method, found))}</code></pre>"
    for parameter in found.get("parameters", ()):
        yield f"<p><code>{escape(parameter['name'])}</code>: {escape(parameter['description'])}</p>"
    if "requestBody" in found:
        schema = found["requestBody"]["content"]["application/json"]["schema"]
        yield f"<h4>Takes {_kind(schema)}</h4>"
        yield from _fields(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    yield "<h4>Answers</h4><dl>"
    for media, content in found["responses"]["200"]["content"].items():
        yield f"<dt>200</dt><dd>{_kind(content.get('x-event', content['schema']))} as {escape(media)}</dd>"
    for status, answer in found["responses"].items():
        if "$ref" in answer:
            text = document["components"]["responses"][status]["description"]
            yield f"<dt>{escape(status)}</dt><dd>{escape(text)}</dd>"
    yield "</dl></article>"


def _fields(schema: Json) -> Iterator[str]:
    """What there is to say of a schema: a table of its fields, or its kind."""
    properties = schema.get("properties")
    if not properties:
        yield f"<p>{_kind(schema)}</p>"
        return
    yield '<div class="table"><table><thead><tr><th>Field</th><th>Kind</th><th></th></tr></thead><tbody>'
    for name, field in properties.items():
        need = " <strong>needed</strong>" if name in schema.get("required", ()) else ""
        text = escape(field.get("description", ""))
        yield f'<tr><th scope="row"><code>{escape(name)}</code>{need}</th><td>{_kind(field)}</td><td>{text}</td></tr>'
    yield "</tbody></table></div>"


def _kind(schema: Json) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, (part for part in schema["anyOf"] if part != {"type": "null"}))))
    if "enum" in schema:
        return ", ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"] if value is not None)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if kinds == ["array"]:
        return f"list of {_kind(schema['items'])}"
    if kinds == ["object"] and "properties" in schema:
        parts = (f"<code>{escape(name)}</code> {_kind(field)}" for name, field in schema["properties"].items())
        return "{ " + ", ".join(parts) + " }"
    return escape((" or ".join(kinds) or "null") + _bounds(schema.get("minimum"), schema.get("maximum")))


def _bounds(low: float | None, high: float | None) -> str:
    """Those that a reader might come to; the others only say how numbers are kept."""
    least = "" if low is None or low < -MOST_SHOWN else f" from {low:g}"
    most = "" if high is None or high > MOST_SHOWN else f" to {high:g}"
    return least + most


def _curl(path: str, method: str, found: Json) -> str:
    words = ["curl", *(["-X", "POST"] if method == "post" and "requestBody" not in found else [])]
    line = f"{' '.join(words)} http://127.0.0.1:8000{path}"
    if "requestBody" in found:
        example = found["requestBody"]["content"]["application/json"].get("example", {})
        line += f" \\\n  -d {shlex.quote(json.dumps(example))}"
    return line


def _route(method: str, path: str) -> str:
    return f'<span class="method">{method.upper()}</span> <code>{escape(path)}</code>'


def _text(text: str) -> str:
    """A paragraph; what stands between backticks is code."""
    if not text:
        return ""
    parts = escape(text).split("`")
    return "<p>" + "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)) + "</p>"
