"""The page at /docs: made of the OpenAPI document, complete in one file, nothing from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from serve import schemas
from serve.openapi import document
from serve.problems import TITLES

_HERE = Path(__file__).parent

# code: (status, what it means and what to do)
PROBLEMS = {
    "invalid_json": (400, "The body is not one JSON value in UTF-8."),
    "not_found": (404, "No endpoint has this path."),
    "unknown_item": (404, "The catalogue has no item with this id."),
    "method_not_allowed": (405, "The path answers other methods; `Allow` names them."),
    "request_timeout": (408, "The request was not sent whole within `serve.body_timeout_s`."),
    "body_too_large": (413, "The body is longer than `serve.max_body_bytes`."),
    "unsupported_media_type": (415, "Send `content-type: application/json`."),
    "unknown_field": (
        422,
        "A field or parameter that is not documented; the detail has the nearest.",
    ),
    "missing_field": (422, "A required field is missing."),
    "invalid_field": (422, "A value has the wrong type or lies beyond a limit."),
    "overloaded": (
        429,
        "`serve.max_queued_requests` or `serve.event_queue_rows` wait already. Try again after "
        "`Retry-After`.",
    ),
    "deadline_exceeded": (503, "`deadline_ms` passed before there was an answer."),
    "database_unavailable": (503, "PostgreSQL does not answer. Try again after `Retry-After`."),
    "not_ready": (503, "No release is loaded, or the service is stopping; see `/readyz`."),
    "internal_error": (500, "A fault of the service. Its log has the details."),
}

_EXAMPLES: dict[str, Any] = {
    "recommend": {"user_id": "1", "count": 10},
    "events": {
        "event_id": "demo-1",
        "user_id": "1",
        "item_id": "1",
        "event_type": "rating",
        "value": 5.0,
    },
    "put_items": {
        "item_id": "new-1",
        "title": "A new film",
        "categories": ["Comedy"],
        "attributes": {"year": 2026},
    },
}


def page() -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    described = document()
    return environment.get_template("docs.html.j2").render(
        info=described["info"],
        operations=_operations(described),
        problems=[
            {"code": code, "status": status, "text": text, "title": TITLES[status]}
            for code, (status, text) in PROBLEMS.items()
        ],
        style=(_HERE / "static" / "docs.css").read_text(encoding="utf-8"),
        script=(_HERE / "static" / "docs.js").read_text(encoding="utf-8"),
        limits={"count": schemas.MAX_COUNT, "rows": schemas.MAX_ROWS},
    )


def _operations(described: dict[str, Any]) -> list[dict[str, Any]]:
    components = described["components"]["schemas"]
    found = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            body = operation.get("requestBody")
            answer = next(iter(operation["responses"]["200"]["content"].values()))["schema"]
            found.append(
                {
                    "name": name,
                    "method": method.upper(),
                    "path": path,
                    "summary": operation["summary"],
                    "text": operation.get("description", ""),
                    "parameters": [
                        _row(p["name"], p["schema"] | p, p.get("required", False), components)
                        | {"place": p["in"]}
                        for p in operation.get("parameters", [])
                    ],
                    "body": _fields(body["content"]["application/json"]["schema"], components)
                    if body
                    else [],
                    "example": json.dumps(_EXAMPLES[name], indent=2) if name in _EXAMPLES else "",
                    "answer": _fields(answer, components),
                    "statuses": sorted(operation["responses"]),
                }
            )
    return found


def _fields(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    schema = components.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = schema.get("required", [])
    return [
        _row(name, declared, name in required, components)
        for name, declared in schema.get("properties", {}).items()
    ]


def _row(
    name: str, declared: dict[str, Any], required: bool, components: dict[str, Any]
) -> dict[str, Any]:
    default = declared.get("default", msgspec.UNSET)
    return {
        "name": name,
        "type": _type(declared, components),
        "required": required,
        "default": "" if default in (msgspec.UNSET, None, []) else json.dumps(default),
        "text": declared.get("description", ""),
    }


def _type(declared: dict[str, Any], components: dict[str, Any]) -> str:
    """Return a type in words, with its limits."""
    if "anyOf" in declared:
        kinds = [_type(part, components) for part in declared["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null")
    if "$ref" in declared:
        name: str = declared["$ref"].rpartition("/")[2]
        return ", ".join(components[name].get("properties", {})) and f"object {name}"
    if "enum" in declared:
        return " | ".join(map(str, declared["enum"]))
    kind = declared.get("type", "any")
    if kind == "array":
        most = f", at most {declared['maxItems']}" if "maxItems" in declared else ""
        return f"list of {_type(declared['items'], components)}{most}"
    low = declared.get("minimum", declared.get("minLength"))
    high = declared.get("maximum", declared.get("maxLength"))
    if high is not None and low is not None:
        return f"{kind} {low}…{high}" + (" chars" if kind == "string" else "")
    return str(kind)
