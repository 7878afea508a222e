"""The API's routes, each once: what answers them is built from this table, and so is the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

_PARAMETERS = {
    "id": (
        "string",
        "A run's id, the beginning of one, or a name, of which the newest run counts; percent-encoded, a slash too.",
    ),
    "number": ("integer", "An alert's id."),
    "silence": ("string", "A silence's id."),
    "run": ("string", "A run, as id; on /series it may be repeated."),
    "name": ("string", "A part of the name, or the beginning of the id."),
    "tag": ("string", "One of the run's tags."),
    "state": ("string", "starting, running, stalled, finished, stopped, failed or lost."),
    "since": ("number", "Began at this Unix time or later."),
    "until": ("number", "Began at this Unix time or before."),
    "launch": ("string", "What $TRACKSIDE_LAUNCH was: of the command that a trackside run has started."),
    "severity": ("string", "info, warning or critical."),
    "alert": ("string", "An alert's name, in which * stands for anything and ? for one character."),
    "firing": ("boolean", "true: only those of this machine that fire now."),
    "evidence": ("boolean", "false: without their evidence, which may be long."),
    "limit": ("integer", "At most so many, the newest."),
    "steps": ("integer", "For so many steps."),
    "key": (
        "string",
        "A pushed key, or a GPU or host series as /metrics writes it, or its family; may be repeated on /series and /export.",
    ),
    "rank": ("string", "A rank, may be repeated, or all; without it the lowest."),
    "ranks": (
        "string",
        "band: of each key and attempt one band of its ranks, points of it [step, time, min, max, median of their last].",
    ),
    "attempt": ("integer", "An attempt; without it all, in their order."),
    "by": ("string", "What from and to are in: step or time (Unix seconds)."),
    "from": ("number", "From this step or time on."),
    "to": ("number", "Up to this step or time."),
    "points": ("integer", "At most so many buckets a series [2000], up to 20000; 0 for every sample."),
    "format": ("string", "csv, json or jsonl."),
}
_REPEATED = {
    *(("/series", name) for name in ("run", "key", "rank")),
    *(("/runs/{id}/export", name) for name in ("key", "rank")),
}
_SERIES = ("key", "rank", "attempt", "by", "from", "to", "points")
_BUCKETS = (
    "Points are [step, time, min, max, last], step and time of the bucket's last sample; with points=0 every sample as "
    "[step, time, value]. Where some samples of the buckets are NaN or infinite there is nonfinite, too: of each point how "
    "many, in the same order. An answer has at most 200000 buckets, and each series fewer than were asked for where there are "
    "many. NaN and infinities are the texts nan, inf and -inf. unit says how many samples the coarsest cell "
    "has; with more than 1, the window's edges are rounded outwards to whole cells."
)


class Endpoint(NamedTuple):
    """One route.

    Attributes:
        handler: The name of the method that answers.
        body: What a request has in its body; empty for nothing.
        pages: Whose method it is: of the pages of the history, of alerts, of the GPUs, of the processes, of the overview, or of
            the daemon itself.
    """

    method: str
    path: str
    handler: str
    summary: str
    parameters: tuple[str, ...] = ()
    description: str = ""
    body: str = ""
    pages: Literal["history", "alerts", "gpu", "processes", "overview", "daemon"] = "history"


ENDPOINTS = (
    Endpoint(
        "GET",
        "/overview",
        "overview",
        "What is now: the machine, its GPUs, the runs that live or linger, the alerts that fire.",
        description="What was not measured is absent. run is a run's id, name its name. Of a run, step is the highest of its "
        "ranks, loss, progress_ratio, remaining_seconds and step_seconds are the lowest rank's; tokens and samples a "
        "second are of all ranks, over 10 s or the last steps; sparkline is the loss of the attempt so far, in at most 60 "
        "values. alerts of a run counts those without a silence. alerts are the 200 worst, those with a silence the last; "
        "id is null until the history has it.",
        pages="overview",
    ),
    Endpoint(
        "GET",
        "/stream",
        "stream",
        "The overview once a second, as server-sent events.",
        ("run",),
        "Each event overview has the answer of /overview. With run there are events run as well, with the run's id, state, "
        "highest step, the time of the event, and values: of each key by rank the newest [step, time, value]; at most 4096 "
        "series. Who is slow misses events, and gets the newest. 100 may listen; more are answered 503. A browser's "
        "EventSource cannot send the token: a page asks by fetch with 'Authorization: Bearer TOKEN' and reads the body as "
        "it comes, so that no URL, cookie or log has the token.",
        pages="overview",
    ),
    Endpoint(
        "GET",
        "/runs",
        "runs",
        "The runs, the newest first.",
        ("name", "tag", "state", "since", "until", "limit", "launch"),
        "Runs that are on /metrics have the numbers of their ranks too.",
    ),
    Endpoint("GET", "/runs/{id}/series", "one_series", "One key of a run.", _SERIES, _BUCKETS),
    Endpoint(
        "GET",
        "/runs/{id}/export",
        "export",
        "Samples of a run, as a file.",
        ("format", "key", "rank", "attempt", "by", "from", "to"),
        "Every sample of the run, or of the keys, ranks, attempt and window that are named; key and rank may be repeated, "
        "and without rank it is all ranks. X-Trackside-Samples says how many samples the file has, to HEAD too. Events "
        "and alerts, which JSON and JSON lines have, are told whole.",
    ),
    Endpoint(
        "POST", "/runs/{id}/pin", "pin", "Keep a run whatever the bounds are, or no longer.", body='{"pinned": true}'
    ),
    Endpoint(
        "POST",
        "/runs/{id}/layers",
        "layers",
        "Have a run that watches its model tell the gradient norm of each layer for some steps.",
        ("steps",),
        "100 steps without steps, 10000 at most. ranks are those that were told; one that watches no model does nothing.",
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
    Endpoint(
        "GET",
        "/runs/{id}",
        "run",
        "All that is known of a run but its samples.",
        description="Of an attempt, phases are by rank the seconds spent in each phase, and lost those that nothing was trained "
        "in, by cause: data, checkpoint, eval, restart, stall; absent where none was told. Of the run, lost is the share of its "
        "time by cause, goodput what is left, and mfu the model's FLOPs over what the GPUs could have done in its attempts.",
    ),
    Endpoint("DELETE", "/runs/{id}", "delete", "Delete a run that has ended."),
    Endpoint("GET", "/series", "series", "Series of one or more runs.", ("run", *_SERIES, "ranks"), _BUCKETS),
    Endpoint("GET", "/events", "events", "What happened, oldest first.", ("run", "limit")),
    Endpoint(
        "GET",
        "/alerts",
        "alerts",
        "Alerts that fire or have fired, oldest first.",
        ("run", "severity", "alert", "firing", "evidence", "limit"),
        "silenced_until is when the silence ends that has an alert which fires, or null; notified are the sinks by which "
        "people were told.",
        pages="alerts",
    ),
    Endpoint("GET", "/alerts/{number}", "alert", "One alert, with its evidence.", pages="alerts"),
    Endpoint(
        "POST",
        "/alerts/test",
        "test_alert",
        "Raise TestAlert, to see whether a notification arrives.",
        description="severity is info, warning or critical; run a run's name, which no run need have. The answer has its "
        "label test, by which /alerts has it a moment later; notified says there where it arrived.",
        body='{"severity": "warning", "run": ""}',
        pages="alerts",
    ),
    Endpoint("GET", "/silences", "silences", "Silences that last, the first to end first.", pages="alerts"),
    Endpoint(
        "POST",
        "/silences",
        "silence",
        "People are not told of some alerts for a while; all else goes on.",
        description="labels are patterns with * and ?, all of which must fit: alert is the alert's name, run the run's, and "
        "others the alert's labels; with none, all alerts are silent. for is in seconds, 7200 without it, 2592000 at most. "
        "firing is what fires and fits now. Answers when the history has it; kept is false when it cannot, and why says "
        "the reason: the silence lasts all the same, but not beyond a restart.",
        body='{"labels": {"alert": "LossSpike", "run": "debug-*"}, "for": 7200, "comment": ""}',
        pages="alerts",
    ),
    Endpoint("DELETE", "/silences/{silence}", "unsilence", "End a silence before its time.", pages="alerts"),
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
    names = (*re.findall(r"{(\w+)}", endpoint.path), *endpoint.parameters)
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
    if (endpoint.path, name) in _REPEATED:
        schema = {"type": "array", "items": schema}
    return {
        "name": name,
        "in": "path" if inside else "query",
        "required": inside,
        "description": description,
        "schema": schema,
    }
