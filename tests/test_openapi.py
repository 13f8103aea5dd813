"""The OpenAPI document: valid, equal to the committed one, complete."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from serve.docs import PROBLEMS, page
from serve.openapi import FILE, document, rendered
from serve.routes import ROUTES


def test_the_committed_document_is_the_generated_one():
    assert FILE.read_text(encoding="utf-8") == rendered(), "run: python -m serve.openapi"


def test_every_schema_is_valid_json_schema():
    described = document()
    for name, schema in described["components"]["schemas"].items():
        whole = schema | {"components": described["components"]}
        jsonschema_rs.validator_for(whole)
        assert name


def test_every_reference_resolves():
    described = document()
    text = json.dumps(described)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= described["components"]["schemas"].keys()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_described(route):
    operation = document()["paths"][route.path][route.method.lower()]
    assert operation["operationId"] == route.name
    assert operation["summary"]
    assert "200" in operation["responses"]
    assert "405" in operation["responses"]
    for status in ("429", "503"):
        answer = operation["responses"].get(status)
        if answer and "application/problem+json" in answer["content"]:
            assert "Retry-After" in answer["headers"]


def test_only_the_user_is_required():
    schema = document()["components"]["schemas"]["RecommendationRequest"]
    assert schema["required"] == ["user_id"]
    assert schema["additionalProperties"] is False


def test_the_page_is_complete_and_alone():
    text = page()
    for route in ROUTES:
        assert f'id="{route.name}"' in text
    for code in PROBLEMS:
        assert f'id="problem-{code}"' in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
