"""The document of OpenAPI is valid, and what it says is what the routes take and answer."""

import json

import jsonschema
import pytest

from keras_transformer.core.schema import Mismatch
from keras_transformer.serving.application import all_doors
from keras_transformer.serving.batching import Refusal
from tests.serving.doors import a_client, a_host

SCHEMAS = jsonschema.Draft202012Validator


@pytest.fixture(scope="module")
def host():
    return a_host()


@pytest.fixture(scope="module")
def client(host):
    return a_client(host)


@pytest.fixture(scope="module")
def document(client):
    return client.get("/openapi.json").json()


def schemas_in(value):
    """All JSON Schemas in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for each in value.values():
            yield from schemas_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from schemas_in(each)


def test_the_document_describes_each_route(document, client):
    doors = all_doors(client.app.state.service.limits)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(door.method, door.path) for door in doors} == described
    assert len(described) == len(doors)
    assert document["openapi"] == "3.1.0"
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len({*names}) == len(names)


def test_its_schemas_are_valid_and_lead_nowhere_else(document):
    for schema in [*schemas_in(document["paths"]), *document["components"]["schemas"].values()]:
        SCHEMAS.check_schema(schema)
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/components/schemas/") in document["components"]["schemas"]


def test_every_limit_is_told(document, host):
    text = document["components"]["schemas"]["translate"]["properties"]["text"]["anyOf"]
    assert text[0]["maxLength"] == host.limits.max_characters
    assert text[1]["maxItems"] == host.limits.max_texts
    assert document["components"]["schemas"]["translate"]["properties"]["n_best"]["default"] == 1
    assert "text/event-stream" in document["paths"]["/v1/translate"]["post"]["responses"]["200"]["content"]
    assert "multipart/form-data" in document["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert "5,000 bytes" in document["info"]["description"]
    assert "60 seconds" in document["info"]["description"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models", None),
        ("POST", "/v1/translate", {"text": ["a", "b"], "n_best": 2}),
        ("POST", "/v1/generate", {"prompt": "a"}),
        ("POST", "/v1/classify", {"inputs": ["a"]}),
        ("POST", "/v1/detect", {"text": "a"}),
        ("POST", "/translate", {"q": ["a"], "source": "auto", "target": "de", "alternatives": 1}),
        ("POST", "/detect", {"q": "a"}),
        ("GET", "/languages", None),
        ("GET", "/frontend/settings", None),
        ("POST", "/v1/completions", {"model": "writer", "prompt": "a"}),
        ("POST", "/v1/chat/completions", {"model": "writer", "messages": [{"role": "user", "content": "a"}]}),
        ("POST", "/v1/translations", {"text": "a", "source_language": "en", "target_language": "de"}),
        ("GET", "/health/ready", None),
    ],
)
def test_answers_and_errors_are_as_described(document, client, method, path, body):
    described = document["paths"][path][method.lower()]["responses"]
    answer = client.request(method, path, json=body)
    assert answer.status_code == 200
    jsonschema.validate(answer.json(), described["200"]["content"]["application/json"]["schema"])
    if body:
        error = client.request(method, path, json={})
        schema = described[str(error.status_code)]["content"]["application/json"]["schema"]
        jsonschema.validate(error.json(), {**schema, "components": document["components"]})


VALUES = [None, True, False, 0, 1, -1, 17, 0.5, "", "a", "a" * 101, "a" * 201, [], ["a"], ["a"] * 6, [1], {}, {"a": 1}]


def test_what_the_schemas_allow_is_what_the_checks_allow(document, client):
    for door in all_doors(client.app.state.service.limits):
        for name, its in door.body.fields.items() if door.body else ():
            for value in VALUES:
                try:
                    its.allowed.checked(value)
                    its.require_size(name, value)
                    is_taken = True
                except (Mismatch, Refusal):
                    is_taken = False
                assert SCHEMAS(its.told).is_valid(value) == is_taken, (door.path, name, json.dumps(value))
