"""The OpenAPI document of the API, built from the table of endpoints."""

import re
from typing import Annotated, Any

import msgspec

from trackside_daemon.questions.question import OfRun, Parameter, parameters
from trackside_daemon.web.api.endpoints import ENDPOINTS, Endpoint


class _Place(OfRun, frozen=True, kw_only=True):
    """Names in the paths of endpoints that are no questions."""

    number: Annotated[int, msgspec.Meta(description="An alert's id.")]
    capture: Annotated[str, msgspec.Meta(description="A capture's id.")]
    file: Annotated[str, msgspec.Meta(description="The name of one of its files.")]
    silence: Annotated[str, msgspec.Meta(description="A silence's id.")]
    pid: Annotated[int, msgspec.Meta(description="The id of a process.")]


_ERRORS = {
    400: "A parameter or the body is invalid.",
    401: "The token, or the user's password, is missing or wrong.",
    403: "The role of the user or token does not permit it, or a page of another site asks to change something.",
    404: "There is no such object.",
    409: "The state of the daemon or of the history does not permit it.",
    421: "The daemon does not serve this host name.",
    429: "Too many requests or passwords, by the web configuration.",
    500: "The history is damaged.",
    503: "Too many requests at once, or the history cannot be written now.",
    507: "There is no room for the file.",
}


def document(version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    error = {"$ref": "#/components/schemas/Error"}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "trackside", "version": version},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "responses": {
                str(status): {"description": description, "content": {"application/json": {"schema": error}}}
                for status, description in _ERRORS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["reason", "message"],
                            "properties": {"reason": {"type": "string"}, "message": {"type": "string"}},
                        }
                    },
                }
            },
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{endpoint.operation}",
        "summary": endpoint.summary,
        "x-role": endpoint.role,
        "parameters": _parameters(endpoint),
        "responses": {
            "200": {"description": endpoint.summary, "content": {kind: {} for kind in endpoint.types}},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _statuses(endpoint)},
        },
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.body:
        schema: dict[str, Any] = {"type": "object"} if endpoint.body.startswith("{") else {}
        kind = "application/json" if schema else "application/octet-stream"
        operation["requestBody"] = {
            "required": True,
            "description": endpoint.body,
            "content": {kind: {"schema": schema}},
        }
    return operation


def _statuses(endpoint: Endpoint) -> list[int]:
    """Return the statuses of the errors of an endpoint."""
    described = _parameters(endpoint)
    derived = {
        400: endpoint.body or any(one["in"] == "query" or one["schema"]["type"] == "integer" for one in described),
        404: "{" in endpoint.path or any(one["name"] == "run" for one in described),
        500: endpoint.handler is endpoint.parameters
        or endpoint.owner in {"HistoryApi", "AlertsApi", "CapturesApi", "OverviewApi"},
    }
    return sorted(
        {401, 403, 421, 429, 503, *endpoint.errors, *(status for status, applies in derived.items() if applies)}
    )


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the parameters of an endpoint: those of its path, those that are required, and the others."""
    inside = re.findall(r"{(\w+)}", endpoint.path)
    own = parameters(endpoint.parameters) if endpoint.parameters else ()
    known = {one.name: one for one in (*parameters(_Place), *own)}
    query = sorted((one for one in own if one.name not in inside), key=lambda one: not one.lacks)
    return [*(_described(known[name], "path") for name in inside), *(_described(one, "query") for one in query)]


def _described(one: Parameter, place: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": one.kind}
    if one.kind == "integer":
        schema["minimum"] = 0
    if one.choices:
        schema["enum"] = list(one.choices)
    if one.is_list:
        schema = {"type": "array", "items": schema}
    return {
        "name": one.name,
        "in": place,
        "required": place == "path",
        "description": one.description,
        "schema": schema,
    }
