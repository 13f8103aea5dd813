"""The OpenAPI 3.1 document, made of the structs and the routes.

``python -m serve.openapi`` writes it to ``serve/openapi.json``; a test compares the two.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from serve.problems import TITLES, Problem
from serve.routes import ROUTES, Route, structs
from serve.schemas import MAX_ROWS, Event, Health, Item

FILE = Path(__file__).parent / "openapi.json"

_REF = "#/components/schemas/{name}"
_ABOUT = """\
A user in, a ranked list of items out, with the time each stage took and where each item came
from. Every error is a problem document (RFC 9457) with a stable `code` and, where a field is to
blame, a JSON `pointer` to it. Fields that are not documented are refused."""


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    bodies = [route.body for route in ROUTES if route.body is not None]
    queries = [route.query for route in ROUTES if route.query is not None]
    _, components = msgspec.json.schema_components(
        [*structs(), Problem, *bodies], ref_template=_REF
    )
    _, parameters = msgspec.json.schema_components(queries, ref_template=_REF)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        operation = _operation(route, parameters)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shortlist",
            "version": version("shortlist-ranking"),
            "description": _ABOUT,
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }


def rendered() -> str:
    """Return the document as the text of the committed file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(route: Route, parameters: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary}
    if route.text:
        operation["description"] = route.text
    declared = []
    if "{id}" in route.path:
        declared.append(_path_parameter())
    if route.query is not None:
        declared += _query_parameters(parameters[route.query.__name__], route.query)
    if declared:
        operation["parameters"] = declared
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body_schema(route)}},
        }
    operation["responses"] = {"200": _answer(route)} | {
        str(status): _problem(status) for status in sorted({*route.problems, 405})
    }
    if route.answer is Health and route.name == "readyz":
        operation["responses"]["503"] = _answer(route) | {"description": "Not ready"}
    return operation


def _path_parameter() -> dict[str, Any]:
    return {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "External id, percent-encoded.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[^\\x00]*$"},
    }


def _query_parameters(schema: dict[str, Any], query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    found = []
    for name in query.__struct_fields__:
        shown = dict(schema["properties"][name])
        parameter: dict[str, Any] = {"name": name, "in": "query", "schema": shown}
        if "description" in shown:
            parameter["description"] = shown.pop("description")
        found.append(parameter)
    return found


def _body_schema(route: Route) -> dict[str, Any]:
    if route.body in (Event | list[Event], Item | list[Item]):
        row = {"$ref": _REF.format(name="Event" if route.name == "events" else "Item")}
        # Whatever a row is, the list is taken and the row answered for.
        rows = {
            "type": "array",
            "description": "Each row is judged alone.",
            "items": {"anyOf": [row, {}]},
            "minItems": 1,
            "maxItems": MAX_ROWS,
        }
        return {"anyOf": [row, rows]}
    return {"$ref": _REF.format(name=route.body.__name__)}


def _answer(route: Route) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if route.answer is Any:
        schema = {"type": "object"}
    elif route.answer is not None:
        schema = {"$ref": _REF.format(name=route.answer.__name__)}
    return {"description": "OK", "content": {route.media: {"schema": schema}}}


def _problem(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": TITLES[status],
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    if status in (429, 503):
        answer["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait before trying again.",
                "schema": {"type": "integer", "minimum": 0},
            }
        }
    return answer


if __name__ == "__main__":
    FILE.write_text(rendered(), encoding="utf-8")
