"""The OpenAPI document: nothing of the paths and declarations is missing in it, and it is a sound one."""

import json
from typing import Any

import jsonschema
from starlette.routing import Route

from enginehouse.core.openapi.document import document
from enginehouse.core.openapi.paths import PATHS
from tests.unit.http.test_completions import Edge, run


def made(**how: Any) -> dict[str, Any]:
    found = json.loads(document("1.2", **how))
    assert isinstance(found, dict)
    return found


def test_every_path_with_its_methods_is_in_it_as_it_is_served() -> None:
    async def scenario(edge: Edge) -> None:
        routes = {
            route.path.replace("{name:path}", "{name}"): sorted((route.methods or {"POST"}) - {"HEAD"})
            for route in edge.app.routes
            if isinstance(route, Route)
        }
        response = await edge.client.get("/openapi.json")
        assert response.headers["content-type"] == "application/json"
        served = response.json()
        told = {path: sorted(map(str.upper, methods)) for path, methods in served["paths"].items()}
        assert told == routes
        assert served["openapi"] == "3.1.0"

    run(scenario, engine=False)


def test_every_field_of_a_body_is_in_it() -> None:
    schemas = made(client_priority=True)["components"]["schemas"]
    bodies = {body for path in PATHS for body in path.body}
    assert len(bodies) == 8
    for body in bodies:
        assert list(schemas[body.__name__]["properties"]) == list(body.__struct_encode_fields__)
        assert {} not in schemas[body.__name__]["properties"].values(), f"{body.__name__} has a field of any type"


def test_priority_is_in_it_only_where_it_is_the_clients_to_say() -> None:
    for allowed in (False, True):
        schemas = made(client_priority=allowed)["components"]["schemas"]
        assert [("priority" in schemas[name]["properties"]) for name in ("ChatFields", "CompletionFields")] == [
            allowed,
            allowed,
        ]


def test_its_schemas_are_schemas_and_no_reference_leads_nowhere() -> None:
    found = made()
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    refs = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            refs.update([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(found)
    assert {ref.removeprefix("#/components/schemas/") for ref in refs} <= set(found["components"]["schemas"])


def test_thinking_stands_in_the_field_that_was_chosen_for_it() -> None:
    assert "reasoning_content" in made()["components"]["schemas"]["ChatMessage"]["properties"]
    message = made(reasoning_field="reasoning")["components"]["schemas"]["ChatMessage"]["properties"]
    assert ("reasoning" in message, "reasoning_content" in message) == (True, False)


def test_o8_errors_have_the_form_of_their_api() -> None:
    paths = made()["paths"]
    for path, name in (("/v1/messages", "MessageError"), ("/v1/responses", "Error"), ("/v1/embeddings", "Error")):
        answers = paths[path]["post"]["responses"]
        assert {"400", "404", "413", "429", "500", "503"} <= set(answers)
        for status in set(answers) - {"200"}:
            schema = answers[status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{name}"}
