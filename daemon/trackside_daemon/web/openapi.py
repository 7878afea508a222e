"""The API's routes, each once: what answers them is built from this table, and so is the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

_PARAMETERS = {
    "id": (
        "string",
        "A run's id, the beginning of one, or a name, of which the newest run counts; percent-encoded, a slash too.",
    ),
    "run": ("string", "A run, as id; on /series it may be repeated."),
    "name": ("string", "A part of the name, or the beginning of the id."),
    "tag": ("string", "One of the run's tags."),
    "state": ("string", "starting, running, stalled, finished, stopped, failed or lost."),
    "since": ("number", "Began at this Unix time or later."),
    "until": ("number", "Began at this Unix time or before."),
    "limit": ("integer", "At most so many, the newest."),
    "key": (
        "string",
        "A pushed key, or a GPU or host series as /metrics writes it, or its family; may be repeated on /series.",
    ),
    "rank": ("string", "A rank, may be repeated, or all; without it the lowest."),
    "attempt": ("integer", "An attempt; without it all, in their order."),
    "by": ("string", "What from and to are in: step or time (Unix seconds)."),
    "from": ("number", "From this step or time on."),
    "to": ("number", "Up to this step or time."),
    "points": ("integer", "At most so many buckets a series [2000], up to 20000; 0 for every sample."),
    "format": ("string", "csv, json or jsonl."),
}
_SERIES = ("key", "rank", "attempt", "by", "from", "to", "points")
_BUCKETS = (
    "Points are [step, time, min, max, last], step and time of the bucket's last sample; with points=0 every sample as "
    "[step, time, value]. An answer has at most 200000 buckets, and each series fewer than were asked for where there are "
    "many. NaN and infinities are the texts nan, inf and -inf. unit says how many samples the coarsest cell "
    "has; with more than 1, the window's edges are rounded outwards to whole cells."
)


class Endpoint(NamedTuple):
    """One route.

    Attributes:
        handler: The name of the method that answers.
        body: What a request has in its body; empty for nothing.
        pages: Whose method it is: of the pages of the history, of the GPUs, of the processes, or of the daemon itself.
    """

    method: str
    path: str
    handler: str
    summary: str
    parameters: tuple[str, ...] = ()
    description: str = ""
    body: str = ""
    pages: Literal["history", "gpu", "processes", "daemon"] = "history"


ENDPOINTS = (
    Endpoint(
        "GET",
        "/runs",
        "runs",
        "The runs, the newest first.",
        ("name", "tag", "state", "since", "until", "limit"),
        "Runs that are on /metrics have the numbers of their ranks too.",
    ),
    Endpoint("GET", "/runs/{id}/series", "one_series", "One key of a run.", _SERIES, _BUCKETS),
    Endpoint("GET", "/runs/{id}/export", "export", "All samples of a run, as a file.", ("format",)),
    Endpoint(
        "POST", "/runs/{id}/pin", "pin", "Keep a run whatever the bounds are, or no longer.", body='{"pinned": true}'
    ),
    Endpoint(
        "GET",
        "/runs/{id}/stacks",
        "stacks",
        "Where each thread of a run's processes is now.",
        description="Asked of the processes themselves; silent are the ranks that have not answered in 3 s.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/ping",
        "ping",
        "How long a run's processes take to answer.",
        description="Silent are the ranks that have not answered in 3 s.",
    ),
    Endpoint("GET", "/runs/{id}", "run", "All that is known of a run but its samples."),
    Endpoint("DELETE", "/runs/{id}", "delete", "Delete a run that has ended."),
    Endpoint("GET", "/series", "series", "Series of one or more runs.", ("run", *_SERIES), _BUCKETS),
    Endpoint("GET", "/events", "events", "What happened, oldest first.", ("run", "limit")),
    Endpoint("GET", "/alerts", "alerts", "Alerts that fire or have fired, oldest first.", ("run", "limit")),
    Endpoint("GET", "/alerts/{id}", "alert", "One alert, with its evidence."),
    Endpoint(
        "POST",
        "/import",
        "import_",
        "Bring runs in from a file.",
        ("name", "id"),
        body="The file: CSV, JSON or JSON lines.",
    ),
    Endpoint(
        "POST",
        "/gpu/pause",
        "pause_gpu",
        "Let go of the GPUs, so that they can be reset or taken away.",
        description="for is in seconds, or null for no end. Answers when the device files are closed, within seven "
        "seconds; released is false when the daemon's own worker hangs in the driver, and holders are the processes that "
        "have the files open, as far as the daemon may look. A second pause counts instead of the first.",
        body='{"for": 600}',
        pages="gpu",
    ),
    Endpoint(
        "POST",
        "/gpu/resume",
        "resume_gpu",
        "Read the GPUs again.",
        description="resumed is false when they were not paused.",
        pages="gpu",
    ),
    Endpoint(
        "GET",
        "/processes",
        "processes",
        "The processes of the trainings on this machine, as of the last tick.",
        description="Each rank, then those below it, each before its own. role is rank, dataloader or other; state a letter "
        "as in /proc/PID/stat; started is in Unix seconds. Empty where --no-collector.process is given.",
        pages="processes",
    ),
    Endpoint(
        "GET",
        "/status",
        "status",
        "How the daemon does.",
        description="measured are a GPU's families without trackside_gpu_; refused says what it does not answer, and why; ailments what is wrong with it.",
        pages="daemon",
    ),
    Endpoint("GET", "/openapi.json", "openapi", "This document.", pages="daemon"),
)
"""An id may be any text: what has a meaning in a path is percent-encoded in it, a slash as %2F."""


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "trackside", "version": version},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
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
    names = (*(("id",) if "{id}" in endpoint.path else ()), *endpoint.parameters)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{endpoint.handler.strip('_')}",
        "summary": endpoint.summary,
        "parameters": [_parameter(name, endpoint) for name in names],
        "responses": {
            "200": {"description": endpoint.summary},
            "default": {"description": "An error.", "content": content},
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


def _parameter(name: str, endpoint: Endpoint) -> dict[str, Any]:
    kind, description = _PARAMETERS[name]
    inside = f"{{{name}}}" in endpoint.path
    schema: dict[str, Any] = {"type": kind}
    if endpoint.path == "/series" and name in {"run", "key", "rank"}:
        schema = {"type": "array", "items": schema}
    return {
        "name": name,
        "in": "path" if inside else "query",
        "required": inside,
        "description": description,
        "schema": schema,
    }
