"""The OpenAPI document of the API, built from the table of endpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.questions.question import parameters
from trackside_daemon.web.api.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.questions.question import Parameter
    from trackside_daemon.web.api.endpoints import Endpoint

_INSIDE = {
    "id": (
        "string",
        "A run's id, its name (the newest run counts), or a unique beginning of its id; percent-encoded, also slashes.",
    ),
    "number": ("integer", "An alert's id."),
    "capture": ("string", "A capture's id."),
    "file": ("string", "The name of one of its files."),
    "silence": ("string", "A silence's id."),
    "pid": ("integer", "The id of a process."),
}
"""Names in paths that are no parameters of a question: kind and sentence."""

_ERRORS = {
    400: "A parameter or the body is invalid.",
    401: "The token, or the user's password, is missing or wrong.",
    403: "A page of another site must not change anything.",
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
        "operationId": f"{endpoint.method.lower()}_{endpoint.handler.strip('_')}",
        "summary": endpoint.summary,
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
        403: endpoint.method != "GET",
        404: "{" in endpoint.path or any(one["name"] == "run" for one in described),
        500: endpoint.group in {"questions", "history", "alerts", "captures", "checkpoints", "overview"},
    }
    return sorted({401, 421, 429, 503, *endpoint.errors, *(status for status, applies in derived.items() if applies)})


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the parameters of an endpoint: those of its path, those that are required, and the others."""
    inside = re.findall(r"{(\w+)}", endpoint.path)
    known = {one.name: one for one in (parameters(endpoint.parameters) if endpoint.parameters else ())}
    path = [_described(known[name]) if name in known else _described_inside(name) for name in inside]
    query = [_described(one) for one in sorted(known.values(), key=lambda one: not one.lacks) if one.name not in inside]
    return [*({**one, "in": "path", "required": True} for one in path), *query]


def _described_inside(name: str) -> dict[str, Any]:
    kind, description = _INSIDE[name]
    return _document(name, kind, description)


def _described(one: Parameter) -> dict[str, Any]:
    return _document(one.name, one.kind, one.description, list(one.choices), is_list=one.is_list)


def _document(
    name: str, kind: str, description: str, choices: Sequence[str] = (), *, is_list: bool = False
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind}
    if kind == "integer":
        schema["minimum"] = 0
    if choices:
        schema["enum"] = choices
    if is_list:
        schema = {"type": "array", "items": schema}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}
