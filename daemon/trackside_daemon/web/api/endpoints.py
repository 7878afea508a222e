"""The table of API endpoints, from which both the routes and the OpenAPI document are built."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from trackside_daemon.model.families.gpu import PREFIX
from trackside_daemon.questions import table
from trackside_daemon.questions.series import Export
from trackside_daemon.web.api.agents import Message
from trackside_daemon.web.api.history import Import, LayersRequest
from trackside_daemon.web.api.machine_history import Machine
from trackside_daemon.web.api.overview.endpoints import StreamOfRun

if TYPE_CHECKING:
    from trackside_daemon.questions.question import Question


class Endpoint(NamedTuple):
    """An API endpoint.

    Attributes:
        handler: The name of the method that answers; of a question, of its operation in the OpenAPI document.
        parameters: The parameters of its query; None for none.
        body: An example or description of the request's body; empty for none.
        errors: Statuses of its errors, besides those that `openapi` derives.
        types: Media types of its answer.
        group: The object whose method it is: `HistoryApi`, `AlertsApi`, `CapturesApi`, `GpuApi`, `AgentsApi`,
            `MachineApi`, `ProcessesApi`, `OverviewApi`, or `WebApp` for ``daemon``; ``questions`` for a question, whose
            parameters they are.
    """

    method: str
    path: str
    handler: str
    summary: str
    parameters: type[Question] | None = None
    description: str = ""
    body: str = ""
    errors: tuple[int, ...] = ()
    types: tuple[str, ...] = ("application/json",)
    group: Literal[
        "history",
        "alerts",
        "captures",
        "gpu",
        "agents",
        "machine",
        "processes",
        "overview",
        "daemon",
        "questions",
    ] = "history"


# In a path, special characters of an id are percent-encoded, a slash as %2F.
_ENDPOINTS = (
    Endpoint(
        "GET",
        "/overview",
        "overview",
        "Return the current overview: the host, its GPUs, Ray, the live and lingering runs, and the firing alerts.",
        description="Unmeasured values are absent; ray is null without the collector ray. run is a run's id and name its name. A run's step is the highest of its "
        "ranks. Its loss, progress_ratio, remaining_seconds and step_seconds are those of the lowest rank. Its tokens and "
        "samples per second are summed over all ranks and measured over 10 s or the last steps. sparkline is the loss of "
        "the attempt so far, in at most 60 values. A run's alerts counts its alerts without a silence. The top-level "
        "alerts are the 200 worst, silenced ones last. An alert's id is null until the history has written it.",
        group="overview",
    ),
    Endpoint(
        "GET",
        "/stream",
        "stream",
        "Stream the overview once a second as server-sent events.",
        StreamOfRun,
        types=("text/event-stream",),
        description="Each event named overview has the response of /overview. With run, events named run follow, with the run's id, "
        "state, highest step, the time of the event, and values: for each key and rank the newest [step, time, value], at "
        "most 4096 series. A slow client misses events and receives the newest. At most 100 clients can listen; further "
        "ones get status 503. A browser's EventSource cannot send the token, so a page uses fetch with 'Authorization: "
        "Bearer TOKEN' and reads the body as it arrives. No URL, cookie or log then contains the token.",
        group="overview",
    ),
    table.Runs,
    table.Keys,
    Endpoint(
        "POST",
        "/runs/{id}/about",
        "describe",
        "Set the name, the notes or the tags of a run.",
        description="What is absent stays. A run can be renamed when it has ended. If it is resumed, its name and tags are those of "
        "the training again.",
        body='{"name": "baseline", "notes": "with the old tokenizer", "tags": ["paper"]}',
        errors=(400, 409),
    ),
    table.OneSeries,
    Endpoint(
        "GET",
        "/runs/{id}/export",
        "export",
        "Download samples of a run as a file.",
        Export,
        "The file has every sample of the run, or of the selected keys, ranks, attempt and window. key and rank may be "
        "repeated; without rank, the file has all ranks. The header X-Trackside-Samples is the number of samples, also "
        "for HEAD. JSON and JSON lines also contain all events and alerts, which the selection does not limit. A CSV file has at "
        "most 16384 keys. The lines of JSON and JSON lines have at most 4096 keys, so pushes of more are split.",
        types=("text/csv", "application/json", "application/jsonl"),
    ),
    Endpoint(
        "POST",
        "/runs/{id}/pin",
        "pin",
        "Pin a run, so that the history limits do not delete it, or unpin it.",
        body='{"pinned": true}',
        errors=(409,),
    ),
    Endpoint(
        "POST",
        "/runs/{id}/layers",
        "layers",
        "Make a run that watches its model report the gradient norm of each layer for some steps.",
        LayersRequest,
        "The default is 100 steps and the maximum 10000. ranks are the ranks that received the request; one that watches "
        "no model ignores it.",
    ),
    table.LayerMap,
    table.LayerValues,
    table.Layer,
    Endpoint(
        "GET",
        "/runs/{id}/stacks",
        "stacks",
        "Return the current stack of each thread of a run's processes.",
        description="The processes themselves answer. silent lists the ranks that did not answer within 3 s.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/ping",
        "ping",
        "Measure how long a run's processes take to answer.",
        description="silent lists the ranks that did not answer within 3 s.",
    ),
    table.Run,
    table.Diagnosis,
    table.Performance,
    table.Comparison,
    table.Report,
    Endpoint(
        "POST",
        "/runs/{id}/captures",
        "begin_capture",
        "Begin a capture of a run.",
        description="The answer comes at once; read /captures/{capture} until its state is summarised or failed. kind is profile, "
        "stacks, memory, flight_recorder or layers. A profile takes steps (10) or seconds, and shapes, stacks or memory as well; "
        "layers take steps (100). "
        "ranks is empty for all.",
        body='{"kind": "profile", "steps": 10, "ranks": [0, 3], "stacks": true}',
        errors=(409,),
        group="captures",
    ),
    table.RunCaptures,
    table.Captures,
    table.Capture,
    Endpoint(
        "GET",
        "/captures/{capture}/files/{file}",
        "capture_file",
        "Download a file of a capture, compressed by gzip.",
        types=("application/gzip",),
        group="captures",
    ),
    Endpoint(
        "POST",
        "/mcp",
        "message",
        "Answer an agent's message of the Model Context Protocol.",
        Message,
        "A message is a JSON-RPC object; one without an id is answered by status 202. A call of the tool wait is answered when "
        "something happens. See docs/agents.md.",
        body='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        group="agents",
    ),
    table.Checkpoints,
    Endpoint(
        "POST",
        "/runs/{id}/checkpoints/audit",
        "audit",
        "Audit the checkpoints of a run again.",
        description="The answer comes at once; checked of each checkpoint is later than the request when its audit is over.",
    ),
    table.Console,
    table.Media,
    Endpoint(
        "GET",
        "/runs/{id}/media/{file}",
        "media_file",
        "Send an image, a text or a table of a run.",
        types=("image/png", "text/plain", "application/json"),
    ),
    Endpoint("DELETE", "/runs/{id}", "delete", "Delete a run that has ended.", errors=(409,)),
    table.Series,
    table.Events,
    table.Alerts,
    Endpoint(
        "POST",
        "/alerts/test",
        "test_alert",
        "Raise TestAlert, to check that notifications arrive.",
        description="severity is info, warning or critical. run is a run's name, and such a run need not exist. The "
        "response has the alert's label test, under which /alerts lists it a moment later. There, notified lists the "
        "receivers that got the notification.",
        body='{"severity": "warning", "run": ""}',
        errors=(409,),
        group="alerts",
    ),
    # After the endpoint whose path it would match too.
    table.Alert,
    Endpoint(
        "POST",
        "/alerts/{number}/dismiss",
        "dismiss",
        "Mark an alert as a false alarm.",
        description="With dismissed=false, take that back. The response is the alert. trackside tune learns from these "
        "marks. The alert fires on: silence it if it disturbs you.",
        body='{"dismissed": true, "comment": ""}',
        errors=(400,),
        group="alerts",
    ),
    table.Silences,
    Endpoint(
        "POST",
        "/silences",
        "silence",
        "Mute notifications of some alerts for a while.",
        description="labels are patterns with * and ?, all of which must match: alert is the alert's name, run the run's, "
        "and others are the alert's labels. Empty labels match all alerts. for is in seconds, 7200 by default and 2592000 "
        "at most. firing in the response lists the firing alerts that match. The response waits until the history has "
        "written the silence. If that fails, kept is false and why gives the reason; the silence then applies only until "
        "the daemon restarts.",
        body='{"labels": {"alert": "LossSpike", "run": "debug-*"}, "for": 7200, "comment": ""}',
        errors=(409,),
        group="alerts",
    ),
    Endpoint("DELETE", "/silences/{silence}", "unsilence", "End a silence early.", group="alerts"),
    Endpoint(
        "POST",
        "/import",
        "import_",
        "Import a run from a file.",
        Import,
        body="The file: CSV, JSON or JSON lines.",
        errors=(409, 507),
    ),
    Endpoint(
        "POST",
        "/gpu/pause",
        "pause_gpu",
        "Pause GPU readings and release the GPUs, so that they can be reset or removed.",
        description="for is in seconds, or null for no end. The response waits until the device files are closed, at most "
        "seven seconds. released is false when the daemon's own worker hangs in the driver. holders lists the processes "
        "that have the device files open, as far as the daemon has permission to see them. A second pause replaces the "
        "first.",
        body='{"for": 600}',
        group="gpu",
    ),
    Endpoint(
        "POST",
        "/gpu/resume",
        "resume_gpu",
        "Resume GPU readings.",
        description="resumed is false when they were not paused.",
        group="gpu",
    ),
    Endpoint(
        "GET",
        "/machine",
        "machine",
        "Return the last hour of the host and its GPUs, each second.",
        Machine,
        "key is a family; without it, families lists those that have values. Points are [0, time, min, max, last, 0, mean] in at most points (600) "
        "buckets. A counter has its growth per second. The hour is in memory, and begins with the daemon.",
        group="machine",
    ),
    Endpoint(
        "GET",
        "/processes",
        "processes",
        "List the processes on this machine that train or use a GPU, as of the last tick.",
        description="Each rank is followed by its descendants, parents first; then come other processes on GPUs, with run null. role is "
        "rank, dataloader, other or gpu. state is the letter from /proc/PID/stat. started is in Unix seconds. gpus has the memory of the "
        "process on each GPU, and its SM utilization where the driver measures it. user and command are null if the "
        "daemon may not see them. With --no-collector.process, only processes on GPUs are listed.",
        group="processes",
    ),
    Endpoint(
        "POST",
        "/processes/{pid}/end",
        "end",
        "Ask a process of a training to end, by SIGTERM.",
        description="Only processes that /processes lists with a run. started has to be theirs, so that another process that "
        "got the same number is not ended. kill sends SIGKILL.",
        body='{"started": 1795729600.7, "kill": false}',
        errors=(400, 403, 409),
        group="processes",
    ),
    Endpoint(
        "GET",
        "/status",
        "status",
        "Return the daemon's status.",
        description=f"For each GPU, measured lists its families without the prefix {PREFIX}, refused lists the "
        "unavailable ones with the reason, and ailments lists the GPU's problems.",
        group="daemon",
    ),
    Endpoint(
        "POST",
        "/token",
        "rotate_token",
        "Replace the token of the API; the old one opens nothing any more.",
        errors=(507,),
        group="daemon",
    ),
    Endpoint("GET", "/openapi.json", "openapi", "Return this document.", group="daemon"),
)


def _asked(question: type[Question]) -> Endpoint:
    """Return the endpoint of a question."""
    operation = re.sub(r"(?<=.)([A-Z])", r"_\1", question.__name__).lower()
    summary = (question.__doc__ or "").partition("\n")[0]
    return Endpoint("GET", question.path, operation, summary, question, question.about, group="questions")


ENDPOINTS = tuple(one if isinstance(one, Endpoint) else _asked(one) for one in _ENDPOINTS)
