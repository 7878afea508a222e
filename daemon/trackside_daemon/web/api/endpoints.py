"""The table of API endpoints, from which both the routes and the OpenAPI document are built."""

import re
from typing import Any, NamedTuple

from trackside_daemon.model.capture import CaptureBody
from trackside_daemon.model.families.gpu import PREFIX
from trackside_daemon.questions import table
from trackside_daemon.questions.question import Question
from trackside_daemon.questions.series import Export
from trackside_daemon.web.api.agents import AgentsApi, MessageParameters
from trackside_daemon.web.api.alerts import AlertsApi, DismissBody, SilenceBody, TestBody
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.daemon import DaemonApi, GpuApi, PauseBody, RotateBody
from trackside_daemon.web.api.history import (
    AnnotationBody,
    DescribeBody,
    HistoryApi,
    Import,
    LayersRequest,
    PinBody,
    ReportFile,
)
from trackside_daemon.web.api.machine_history import Machine, MachineApi
from trackside_daemon.web.api.overview.handlers import OverviewApi, StreamOfRun
from trackside_daemon.web.api.processes import EndBody, ProcessesApi
from trackside_daemon.web.http.roles import Role


class Endpoint(NamedTuple):
    """An API endpoint."""

    method: str
    path: str
    # The method that answers, whose docstring is the endpoint's sentence; of a question, its class.
    handler: Any  # a method, or a class of questions
    parameters: type[Question] | None = None  # the parameters of its query; None for none
    description: str = ""
    body: str = ""  # an example or description of the request's body; empty for none
    body_type: Any = None  # its class; None for a file or a JSON object of any kind
    errors: tuple[int, ...] = ()  # statuses of its errors, besides those that `openapi` derives
    types: tuple[str, ...] = ("application/json",)  # media types of its answer
    needs: Role | None = None  # the role that it needs; empty for ``read`` to read and ``write`` to change

    @property
    def role(self) -> Role:
        """The role that a request needs."""
        return self.needs or ("read" if self.method == "GET" else "write")

    @property
    def is_question(self) -> bool:
        """True if the handler is a question."""
        return isinstance(self.handler, type)

    @property
    def owner(self) -> str:
        """The class that has the handler."""
        return str(self.handler.__qualname__.partition(".")[0])

    @property
    def operation(self) -> str:
        """The name of its operation, such as ``get_runs`` or ``delete_run``."""
        name = re.sub(r"(?<=.)([A-Z])", r"_\1", self.handler.__name__).lower().strip("_")
        return f"get_{name}" if self.method == "GET" else name

    @property
    def tag(self) -> str:
        """The name of its group."""
        return next(tag for tag, begin in TAGS.items() if re.match(begin, self.path))

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0]


TAGS = {
    "Overview": "/(overview|stream)",
    "Series": "/series|/keys|/runs/{id}/(series|export)|/import",
    "Diagnosis": "/comparison|/code|/runs/{id}/(diagnosis|performance|report)",
    "Layers": "/runs/{id}/layer",
    "Captures": "/captures|/runs/{id}/(captures|stacks|ping)",
    "Artifacts": "/runs/{id}/(checkpoints|console|media|batches)",
    "Runs": "/runs|/fleet",
    "Alerts": "/alerts|/silences|/events",
    "Machine": "/machine|/processes|/gpu",
    "Daemon": "/",
}
"""The groups of endpoints, each with how their paths begin; the first that matches counts."""

# In a path, special characters of an id are percent-encoded, a slash as %2F.
_ENDPOINTS = (
    Endpoint(
        "GET",
        "/overview",
        OverviewApi.overview,
        description="Unmeasured values of a run are null, those of the host and of GPUs absent; ray is null without the collector ray. step is the highest of a "
        "run's ranks; loss, progress_ratio, remaining_seconds and step_seconds are the lowest rank's; tokens and "
        "samples per second are summed over all ranks, over 10 s or the last steps. sparkline is the loss of the "
        "attempt so far, in at most 60 values. A run's alerts counts those without a silence; the list of alerts has "
        "the 200 worst, silenced ones last. An alert's id is null until the history has written it.",
    ),
    Endpoint(
        "GET",
        "/stream",
        OverviewApi.stream,
        StreamOfRun,
        description="Each event named overview has the answer of /overview. With run, events named run follow: the "
        "run's id, state, highest step, time, and as values the newest [step, time, value] of each key and rank, of "
        "at most 4096 series. A slow client misses events and receives the newest. Of more than 100 clients, further "
        "ones get 503. A browser's EventSource cannot send the token: a page reads the body of fetch as it arrives, "
        "so that no URL, cookie or log has the token.",
        types=("text/event-stream",),
    ),
    table.Runs,
    table.Keys,
    Endpoint(
        "POST",
        "/runs/{id}/about",
        HistoryApi.describe_run,
        description="What is absent stays; with notes_before, changed notes are 409. The answer is as of /runs/{id}, without series. "
        "A run can be renamed when it has ended; resumed, its name and tags are the training's again.",
        body='{"name": "baseline", "notes": "with the old tokenizer", "tags": ["paper"]}',
        body_type=DescribeBody,
        errors=(400, 409),
    ),
    Endpoint(
        "POST",
        "/runs/{id}/annotations",
        HistoryApi.annotate_run,
        description="It replaces the one there; an empty text removes that. time is now by default. /events has it.",
        body='{"text": "lr halved", "step": 1200, "time": 1700000000.0}',
        body_type=AnnotationBody,
        errors=(400, 409),
    ),
    table.OneSeries,
    Endpoint(
        "GET",
        "/runs/{id}/export",
        HistoryApi.export,
        Export,
        description="The file has every sample, or those of the keys, ranks, attempt and window. Without rank, it has "
        "all ranks. The header X-Trackside-Samples is their number, also for HEAD. JSON and JSON lines have all "
        "events and alerts too, and at most 4096 keys a line: pushes of more are split. A CSV file has at most 16384 "
        "keys.",
        types=("text/csv", "application/json", "application/jsonl"),
    ),
    Endpoint(
        "GET",
        "/runs/{id}/report/file",
        HistoryApi.report_file,
        ReportFile,
        types=("text/html", "text/markdown", "image/svg+xml"),
    ),
    Endpoint("POST", "/runs/{id}/pin", HistoryApi.pin_run, body='{"pinned": true}', body_type=PinBody, errors=(409,)),
    Endpoint(
        "POST",
        "/runs/{id}/layers",
        HistoryApi.request_layers,
        LayersRequest,
        description="ranks are those that received the request; one that watches no model ignores it.",
    ),
    table.LayerMap,
    table.LayerValues,
    table.Fleet,
    table.Layer,
    Endpoint(
        "GET",
        "/runs/{id}/stacks",
        HistoryApi.stacks,
        description="The processes themselves answer; silent lists the ranks that did not within 3 s.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/ping",
        HistoryApi.ping,
        description=("silent lists the ranks that did not answer within 3 s."),
    ),
    table.Run,
    table.Diagnosis,
    table.Performance,
    table.Comparison,
    table.Report,
    Endpoint(
        "POST",
        "/runs/{id}/captures",
        CapturesApi.begin_capture,
        description="The answer comes at once; read /captures/{capture} until its state is summarised or failed. kind "
        "is profile, stacks, memory, flight_recorder or layers. A profile takes steps (10) or seconds, and shapes, "
        "stacks or memory; layers take steps (100). Without ranks, it is of all.",
        body='{"kind": "profile", "steps": 10, "ranks": [0, 3], "stacks": true}',
        body_type=CaptureBody,
        errors=(409,),
    ),
    table.RunCaptures,
    table.Captures,
    table.Capture,
    Endpoint("GET", "/captures/{capture}/files/{file}", CapturesApi.capture_file, types=("application/octet-stream",)),
    Endpoint(
        "POST",
        "/mcp",
        AgentsApi.send_message,
        MessageParameters,
        description="A message is a JSON-RPC object; one without an id is answered by 202. A call of the tool wait is "
        "answered when something happens. Tools that act on a training need the role write. See docs/agents.md.",
        body='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        needs="read",
    ),
    table.Batches,
    table.Checkpoints,
    Endpoint(
        "POST",
        "/runs/{id}/checkpoints/audit",
        HistoryApi.audit_checkpoints,
        description="The answer comes at once; the audit of a checkpoint is over when its checked is later than the "
        "request.",
    ),
    table.Console,
    table.Media,
    table.Code,
    Endpoint(
        "GET", "/runs/{id}/media/{file}", HistoryApi.media_file, types=("image/png", "text/plain", "application/json")
    ),
    Endpoint("DELETE", "/runs/{id}", HistoryApi.delete_run, errors=(409,), needs="admin"),
    table.Series,
    table.Events,
    table.Alerts,
    Endpoint(
        "POST",
        "/alerts/test",
        AlertsApi.test_alert,
        description="severity is info, warning or critical. run is a run's name; such a run need not exist. /alerts "
        "lists the alert a moment later under the label test of the answer, and in notified the receivers that got it.",
        body='{"severity": "warning", "run": ""}',
        body_type=TestBody,
        errors=(409,),
    ),
    # After the endpoint whose path it would match too.
    table.Alert,
    Endpoint(
        "POST",
        "/alerts/{number}/dismiss",
        AlertsApi.dismiss_alert,
        description="With dismissed=false, take that back. trackside tune learns from these marks. The alert fires on: "
        "silence it if it disturbs you.",
        body='{"dismissed": true, "comment": ""}',
        body_type=DismissBody,
        errors=(400,),
    ),
    table.Silences,
    Endpoint(
        "POST",
        "/silences",
        AlertsApi.add_silence,
        description="labels are patterns with * and ?, all of which must match: alert is the alert's name, run the "
        "run's, others are the alert's labels; none match all alerts. for is in seconds, 7200 by default and 2592000 "
        "at most. firing lists the firing alerts that match. The answer waits until the history has written the "
        "silence; if that fails, kept is false, why says why, and the silence ends when the daemon does.",
        body='{"labels": {"alert": "LossSpike", "run": "debug-*"}, "for": 7200, "comment": ""}',
        body_type=SilenceBody,
        errors=(409,),
    ),
    Endpoint("DELETE", "/silences/{silence}", AlertsApi.end_silence),
    Endpoint(
        "POST", "/import", HistoryApi.import_run, Import, body="The file: CSV, JSON or JSON lines.", errors=(409, 507)
    ),
    Endpoint(
        "POST",
        "/gpu/pause",
        GpuApi.pause_gpu,
        description="for is in seconds, or null for no end. The answer waits until the device files are closed, at "
        "most seven seconds. released is false when the daemon's own worker hangs in the driver. holders are the "
        "processes that have the device files open, as far as the daemon may see them. A second pause replaces the "
        "first.",
        body='{"for": 600}',
        body_type=PauseBody,
        needs="admin",
    ),
    Endpoint(
        "POST",
        "/gpu/resume",
        GpuApi.resume_gpu,
        description="resumed is false when they were not paused.",
        needs="admin",
    ),
    Endpoint(
        "GET",
        "/machine",
        MachineApi.machine,
        Machine,
        description="Without key, families lists those that have values. Points are [0, time, min, max, last, 0, "
        "mean]; a counter has its growth per second. A window that begins within the last hour has each second since "
        "the daemon began.",
    ),
    Endpoint(
        "GET",
        "/processes",
        ProcessesApi.processes,
        description="Each rank is followed by its descendants, parents first; then come other processes on GPUs, with "
        "run null. role is rank, dataloader, other or gpu; state is the letter of /proc/PID/stat. gpus has the "
        "process's memory on each GPU, and its SM utilization where the driver measures it. user and command are null "
        "if the daemon may not see them. With --no-collector.process, only processes on GPUs are listed.",
    ),
    Endpoint(
        "POST",
        "/processes/{pid}/end",
        ProcessesApi.end_process,
        description="Only processes that /processes lists with a run, and with their started, so that another process "
        "with the same number is not ended. kill sends SIGKILL.",
        body='{"started": 1795729600.7, "kill": false}',
        body_type=EndBody,
        errors=(400, 403, 409),
        needs="admin",
    ),
    Endpoint(
        "GET",
        "/status",
        DaemonApi.status,
        description=f"For each GPU, measured lists its families without the prefix {PREFIX}, refused lists the "
        "unavailable ones with the reason, and ailments lists the GPU's problems.",
    ),
    Endpoint(
        "POST",
        "/token",
        DaemonApi.rotate_token,
        description="The old one stays valid for keep seconds, 2592000 at most; without a body, not at all.",
        body='{"keep": 3600}',
        body_type=RotateBody,
        errors=(507,),
        needs="admin",
    ),
    Endpoint("GET", "/openapi.json", DaemonApi.openapi),
)

ENDPOINTS = tuple(
    one if isinstance(one, Endpoint) else Endpoint("GET", one.path, one, one, one.about) for one in _ENDPOINTS
)
