"""Requests made from the OpenAPI document, valid and not: never a 5xx, never an odd answer."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from serve.openapi import document

EXAMPLES = int(os.environ.get("API_EXAMPLES", "40"))

LONGEST_URL = 16_000

SCHEMA = schemathesis.openapi.from_dict(document())
SCHEMA.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


def came_late(response) -> bool:
    """Say whether a request was refused for a `deadline_ms` that it made too short itself."""
    return response.status_code == 503 and response.json()["code"] == "deadline_exceeded"


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_documented(case, api):
    """Status, content type and body conform, and bad requests are refused.

    That every good one is taken is not asked: JSON Schema counts 7.0 as an integer.
    """
    response = case.call(base_url=str(api.client.base_url))
    if came_late(response):
        return
    assert response.status_code < 500, response.text
    if response.status_code == 400 and len(response.request.url) > LONGEST_URL:
        return  # refused by the HTTP server, before the API
    case.validate_response(response, excluded_checks=[positive_data_acceptance])


@pytest.mark.usefixtures("served")
@SCHEMA.include(operation_id_regex="recommend|events").parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_5xx_through_the_proxy(case, served):
    response = case.call(base_url=str(served.client.base_url))
    assert response.status_code < 500 or came_late(response)
