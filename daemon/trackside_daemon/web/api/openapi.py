"""The OpenAPI document of the API, built from the table of endpoints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.web.api.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from trackside_daemon.web.api.endpoints import Endpoint

_PARAMETERS = {
    "id": (
        "string",
        "A run's id, its name (the newest run counts), or a unique beginning of its id; percent-encoded, also slashes.",
    ),
    "number": ("integer", "An alert's id."),
    "capture": ("string", "A capture's id."),
    "file": ("string", "The name of one of its files."),
    "silence": ("string", "A silence's id."),
    "run": (
        "string",
        "A run's id, its name or a unique beginning of its id. May be repeated on /series and /comparison.",
    ),
    "name": ("string", "A part of the run's name, or the beginning of its id."),
    "tag": ("string", "A tag of the run."),
    "state": ("string", "starting, running, stalled, finished, stopped, failed or lost."),
    "since": ("number", "Only runs that began at this Unix time or later."),
    "until": ("number", "Only runs that began at this Unix time or earlier."),
    "launch": ("string", "Only runs with this $TRACKSIDE_LAUNCH, which `trackside run` sets for its command."),
    "severity": ("string", "info, warning or critical."),
    "alert": ("string", "An alert's name. * matches any text and ? one character."),
    "firing": ("boolean", "true returns only alerts of this machine that fire now, false only others."),
    "evidence": ("boolean", "false omits the evidence, which may be long."),
    "limit": ("integer", "Maximum number of entries. The newest are returned."),
    "offset": ("integer", "Number of metrics to skip."),
    "steps": ("integer", "Number of steps."),
    "metric": ("string", "A pushed key."),
    "layer": ("string", "The name of a layer; of attention LAYER/HEAD, percent-encoded."),
    "kind": (
        "string",
        "weights, gradients, activations or attention. Without it, the first of these that the run has.",
    ),
    "value": ("string", "A column of the kind, which kinds in the answer lists. Without it, the first."),
    "key": (
        "string",
        "A pushed key; except on /export, also the name of a GPU or host series or family. Repeatable on /series, /export.",
    ),
    "rank": ("string", "A rank, or all. May be repeated. Without it, the lowest rank."),
    "ranks": (
        "string",
        "band: one band over the ranks of each key and attempt, points [step, time, min, max, median of their last].",
    ),
    "pid": ("integer", "The id of a process."),
    "config": ("string", "true: also the configuration of each run."),
    "mean": ("string", "true: also the mean of each point."),
    "baseline": (
        "string",
        "A run or a tag to compare with. May be repeated. Default: the newest pinned run of the name, else the last finished.",
    ),
    "attempt": ("integer", "An attempt. Without it, all attempts in order."),
    "by": ("string", "Unit of from and to: step (the default), or time in Unix seconds."),
    "from": ("number", "First step or time."),
    "to": ("number", "Last step or time."),
    "points": ("integer", "Maximum number of buckets per series [2000], up to 20000. 0 returns every sample."),
    "allow-actions": (
        "boolean",
        "true also offers the tools that act on a training, such as capture, if web.agent-actions does.",
    ),
    "lines": ("integer", "Maximum number of lines [400], up to 10000."),
    "before": ("integer", "Only lines before this number."),
    "search": ("string", "Only lines that contain this text."),
    "colors": ("string", "true: also the coloured parts of each line."),
    "size": ("integer", "Maximum number of bytes of all charts [1600000], up to 100000000."),
    "format": ("string", "csv, json or jsonl."),
    "resources": ("string", "true: also the GPU, host and process series of the machine in the time of the run."),
}
_CHOICES = {
    "severity": ["info", "warning", "critical"],
    "ranks": ["band"],
    "mean": ["true", "false"],
    "config": ["true", "false"],
    "colors": ["true", "false"],
    "by": ["step", "time"],
    "format": ["csv", "json", "jsonl"],
    "kind": ["weights", "gradients", "activations", "attention"],
    "resources": ["true", "false"],
}
_IMPORT_PARAMETERS = {
    "id": ("string", "The run's id, which replaces the one in the file."),
    "name": ("string", "The run's name, which replaces the one in the file."),
}
_REPEATED = {
    *(("/series", name) for name in ("run", "key", "rank")),
    *(("/runs/{id}/diagnosis", name) for name in ("baseline", "key")),
    *(("/comparison", name) for name in ("run", "baseline", "key")),
    *(("/runs/{id}/export", name) for name in ("key", "rank")),
    *((f"/runs/{{id}}/layers{layer}", "rank") for layer in ("", "/{layer}")),
}
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
    names = (*re.findall(r"{(\w+)}", endpoint.path), *endpoint.parameters)
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{endpoint.handler.strip('_')}",
        "summary": endpoint.summary,
        "parameters": [_parameter(name, endpoint) for name in names],
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
    derived = {
        400: endpoint.parameters or endpoint.body,
        403: endpoint.method != "GET",
        404: "{" in endpoint.path or "run" in endpoint.parameters,
        500: endpoint.group in {"history", "diagnosis", "alerts", "captures", "checkpoints", "layers", "overview"},
    }
    return sorted({401, 421, 429, 503, *endpoint.errors, *(status for status, applies in derived.items() if applies)})


def _parameter(name: str, endpoint: Endpoint) -> dict[str, Any]:
    descriptions = {**_PARAMETERS, **_IMPORT_PARAMETERS} if endpoint.path == "/import" else _PARAMETERS
    kind, description = descriptions[name]
    inside = f"{{{name}}}" in endpoint.path
    schema: dict[str, Any] = {"type": kind}
    if kind == "integer":
        schema["minimum"] = 0
    if name in _CHOICES:
        schema["enum"] = _CHOICES[name]
    if (endpoint.path, name) in _REPEATED:
        schema = {"type": "array", "items": schema}
    return {
        "name": name,
        "in": "path" if inside else "query",
        "required": inside,
        "description": description,
        "schema": schema,
    }
