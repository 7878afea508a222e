"""The OpenAPI document of the API, built from the table of endpoints."""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import msgspec.structs

from trackside_daemon.questions.question import MOST_INTEGER, OfRun, Parameter, parameters
from trackside_daemon.web.api.endpoints import ENDPOINTS, TAGS, Endpoint


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


_VALUE = {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["nan", "inf", "-inf"]}]}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "value": {"$ref": "#/components/schemas/Value"},
    "object": {"type": "object", "additionalProperties": True},
    "any": {},
}


@cache
def read_answers() -> dict[str, Any]:
    """Return the answers of all operations, and the types in them, as answers.yaml writes them."""
    import yaml  # most daemons are never asked

    return dict(yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8")))


def document(version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    answers = read_answers()
    bodies = [one.body_type for one in ENDPOINTS if one.body_type]
    of_bodies, of_parts = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    body_schemas = dict(zip(bodies, of_bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        schema = _schema(answers["answers"].get(endpoint.operation, "any"))
        operation = _operation(endpoint, schema, body_schemas.get(endpoint.body_type))
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    error = _schema({"error": {"reason": "text", "message": "text"}})
    return {
        "openapi": "3.1.0",
        "info": {"title": "trackside", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "tags": [{"name": name} for name in TAGS],
        "paths": paths,
        "components": {
            "responses": {
                str(status): {"description": description, "content": _content("application/json", "Error")}
                for status, description in _ERRORS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": error,
                "Value": _VALUE,
                **{name: _schema(one) for name, one in answers["types"].items()},
                **of_parts,
            },
        },
    }


def _schema(of: Any) -> dict[str, Any]:
    """Return the schema of a type as answers.yaml writes it."""
    if isinstance(of, list):
        return {"type": "array", "items": _schema(of[0])}
    if isinstance(of, str):
        if of.endswith("|null"):
            return {"anyOf": [_schema(of.removesuffix("|null")), {"type": "null"}]}
        return dict(_SCHEMAS[of]) if of in _SCHEMAS else {"$ref": f"#/components/schemas/{of}"}
    if "*" in of:
        return {"type": "object", "additionalProperties": _schema(of["*"])}
    return {
        "type": "object",
        "required": [name for name in of if not name.endswith("~")],
        "properties": {name.removesuffix("~"): _schema(one) for name, one in of.items()},
    }


def _has_required(body: Any) -> bool:
    return any(field.required for field in msgspec.structs.fields(body))


def _content(kind: str, schema: dict[str, Any] | str) -> dict[str, Any]:
    return {kind: {"schema": {"$ref": f"#/components/schemas/{schema}"} if isinstance(schema, str) else schema}}


def _operation(endpoint: Endpoint, schema: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in endpoint.types:
        is_binary = kind in {"application/octet-stream", "image/png"}
        text = {"type": "string", "format": "binary"} if is_binary else {"type": "string"}
        of_file: dict[str, Any] = {} if kind == "application/json" else text
        content |= _content(kind, schema if endpoint.types == ("application/json",) else of_file)
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "x-role": endpoint.role,
        "parameters": _parameters(endpoint),
        "responses": {
            "200": {"description": endpoint.summary, "content": content},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _statuses(endpoint)},
        },
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.body:
        is_file = not endpoint.body.startswith("{")
        kind = "application/octet-stream" if is_file else "application/json"
        given = {"type": "string", "format": "binary"} if is_file else body or {}
        required = is_file or bool(body and _has_required(endpoint.body_type))
        operation["requestBody"] = {
            "required": required,
            "description": endpoint.body,
            "content": _content(kind, given),
        }
    return operation


def _statuses(endpoint: Endpoint) -> list[int]:
    """Return the statuses of the errors of an endpoint."""
    described = _parameters(endpoint)
    derived = {
        400: endpoint.body or any(one["in"] == "query" or one["schema"]["type"] == "integer" for one in described),
        404: "{" in endpoint.path or any(one["name"] in {"run", "after"} for one in described),
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
    if one.is_moment:
        number = {"type": "number", "minimum": one.low, "maximum": one.high}
        schema = {"anyOf": [number, {"type": "string", "format": "date-time"}]}
    elif one.choices:
        schema["enum"] = list(one.choices)
    elif one.kind in {"integer", "number"}:
        schema |= {"minimum": one.low or 0, "maximum": MOST_INTEGER if one.high is None else one.high}
    elif one.pattern:
        schema["pattern"] = one.pattern
    elif one.kind == "string" and one.high is not None and not one.is_list:
        schema["maxLength"] = one.high
    if one.is_list:
        schema = {"type": "array", "items": schema, **({"maxItems": one.high} if one.high else {})}
        schema |= {"minItems": 1} if one.lacks else {}
    if one.default not in (None, "", ()) and place == "query":
        schema = {**schema, "default": one.default}
    return {
        "name": one.name,
        "in": place,
        "required": place == "path" or bool(one.lacks),
        "description": one.description,
        "schema": schema,
    }
