"""The table of API endpoints, from which both the routes and the OpenAPI document are built."""

import re
from typing import Any, NamedTuple

from trackside_daemon.model.capture_limits import CaptureBody
from trackside_daemon.model.families.gpu import PREFIX
from trackside_daemon.questions import table
from trackside_daemon.questions.question import Question
from trackside_daemon.questions.series import Export
from trackside_daemon.web.api.agents import AgentsApi, MessageParameters
from trackside_daemon.web.api.alerts import AlertsApi, DismissBody, SilenceBody, TestBody
from trackside_daemon.web.api.captures import CapturesApi
from trackside_daemon.web.api.daemon import DaemonApi, GpuApi, PauseBody, RotateBody
from trackside_daemon.web.api.history import DescribeBody, HistoryApi, Import, LayersRequest, PinBody, ReportFile
from trackside_daemon.web.api.machine_history import Machine, MachineApi
from trackside_daemon.web.api.overview.handlers import OverviewApi, StreamOfRun
from trackside_daemon.web.api.processes import EndBody, ProcessesApi
from trackside_daemon.web.http.roles import Role


class Endpoint(NamedTuple):
    """An API endpoint.

    Attributes:
        handler: The method that answers, whose docstring is the endpoint's sentence; of a question, its class.
        parameters: The parameters of its query; None for none.
        body: An example or description of the request's body; empty for none.
        body_type: Its class; None for a file or a JSON object of any kind.
        errors: Statuses of its errors, besides those that `openapi` derives.
        types: Media types of its answer.
        needs: The role that it needs; empty for ``read`` to read and ``write`` to change.
    """

    method: str
    path: str
    handler: Any  # a method, or a class of questions
    parameters: type[Question] | None = None
    description: str = ""
    body: str = ""
    body_type: Any = None
    errors: tuple[int, ...] = ()
    types: tuple[str, ...] = ("application/json",)
    needs: Role | None = None

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
        description="Unmeasured values are absent; ray is null without the collector ray. run is a run's id and name its name. A run's step is the highest of its "
        "ranks. Its loss, progress_ratio, remaining_seconds and step_seconds are those of the lowest rank. Its tokens and "
        "samples per second are summed over all ranks and measured over 10 s or the last steps. sparkline is the loss of "
        "the attempt so far, in at most 60 values. A run's alerts counts its alerts without a silence. The top-level "
        "alerts are the 200 worst, silenced ones last. An alert's id is null until the history has written it.",
    ),
    Endpoint(
        "GET",
        "/stream",
        OverviewApi.stream,
        StreamOfRun,
        description="Each event named overview has the response of /overview. With run, events named run follow, with the run's id, "
        "state, highest step, the time of the event, and values: for each key and rank the newest [step, time, value], at "
        "most 4096 series. A slow client misses events and receives the newest. At most 100 clients can listen; further "
        "ones get status 503. A browser's EventSource cannot send the token, so a page uses fetch with 'Authorization: "
        "Bearer TOKEN' and reads the body as it arrives. No URL, cookie or log then contains the token.",
        types=("text/event-stream",),
    ),
    table.Runs,
    table.Keys,
    Endpoint(
        "POST",
        "/runs/{id}/about",
        HistoryApi.describe_run,
        description="What is absent stays. A run can be renamed when it has ended. If it is resumed, its name and tags are those of "
        "the training again.",
        body='{"name": "baseline", "notes": "with the old tokenizer", "tags": ["paper"]}',
        body_type=DescribeBody,
        errors=(400, 409),
    ),
    table.OneSeries,
    Endpoint(
        "GET",
        "/runs/{id}/export",
        HistoryApi.export,
        Export,
        description="The file has every sample of the run, or of the selected keys, ranks, attempt and window. key and rank may be "
        "repeated; without rank, the file has all ranks. The header X-Trackside-Samples is the number of samples, also "
        "for HEAD. JSON and JSON lines also contain all events and alerts, which the selection does not limit. A CSV file has at "
        "most 16384 keys. The lines of JSON and JSON lines have at most 4096 keys, so pushes of more are split.",
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
        description="The default is 100 steps and the maximum 10000. ranks are the ranks that received the request; one that watches "
        "no model ignores it.",
    ),
    table.LayerMap,
    table.LayerValues,
    table.Fleet,
    table.Layer,
    Endpoint(
        "GET",
        "/runs/{id}/stacks",
        HistoryApi.stacks,
        description="The processes themselves answer. silent lists the ranks that did not answer within 3 s.",
    ),
    Endpoint(
        "GET", "/runs/{id}/ping", HistoryApi.ping, description="silent lists the ranks that did not answer within 3 s."
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
        description="The answer comes at once; read /captures/{capture} until its state is summarised or failed. kind is profile, "
        "stacks, memory, flight_recorder or layers. A profile takes steps (10) or seconds, and shapes, stacks or memory as well; "
        "layers take steps (100). "
        "ranks is empty for all.",
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
        description="A message is a JSON-RPC object; one without an id is answered by status 202. A call of the tool wait is answered when "
        "something happens. The tools that act on a training need the role write. See docs/agents.md.",
        body='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        needs="read",
    ),
    table.Batches,
    table.Checkpoints,
    Endpoint(
        "POST",
        "/runs/{id}/checkpoints/audit",
        HistoryApi.audit_checkpoints,
        description="The answer comes at once; checked of each checkpoint is later than the request when its audit is over.",
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
        description="severity is info, warning or critical. run is a run's name, and such a run need not exist. The "
        "response has the alert's label test, under which /alerts lists it a moment later. There, notified lists the "
        "receivers that got the notification.",
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
        description="With dismissed=false, take that back. The response is the alert. trackside tune learns from these "
        "marks. The alert fires on: silence it if it disturbs you.",
        body='{"dismissed": true, "comment": ""}',
        body_type=DismissBody,
        errors=(400,),
    ),
    table.Silences,
    Endpoint(
        "POST",
        "/silences",
        AlertsApi.add_silence,
        description="labels are patterns with * and ?, all of which must match: alert is the alert's name, run the run's, "
        "and others are the alert's labels. Empty labels match all alerts. for is in seconds, 7200 by default and 2592000 "
        "at most. firing in the response lists the firing alerts that match. The response waits until the history has "
        "written the silence. If that fails, kept is false and why gives the reason; the silence then applies only until "
        "the daemon restarts.",
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
        description="for is in seconds, or null for no end. The response waits until the device files are closed, at most "
        "seven seconds. released is false when the daemon's own worker hangs in the driver. holders lists the processes "
        "that have the device files open, as far as the daemon has permission to see them. A second pause replaces the "
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
        description="key is a family; without it, families lists those that have values. Points are [0, time, min, max, last, 0, mean] in at most points (600) "
        "buckets. A counter has its growth per second. A window that begins within the last hour has each second since the daemon began.",
    ),
    Endpoint(
        "GET",
        "/processes",
        ProcessesApi.processes,
        description="Each rank is followed by its descendants, parents first; then come other processes on GPUs, with run null. role is "
        "rank, dataloader, other or gpu. state is the letter from /proc/PID/stat. started is in Unix seconds. gpus has the memory of the "
        "process on each GPU, and its SM utilization where the driver measures it. user and command are null if the "
        "daemon may not see them. With --no-collector.process, only processes on GPUs are listed.",
    ),
    Endpoint(
        "POST",
        "/processes/{pid}/end",
        ProcessesApi.end_process,
        description="Only processes that /processes lists with a run. started has to be theirs, so that another process that "
        "got the same number is not ended. kill sends SIGKILL.",
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
        description="Without a body, the old one opens nothing any more. keep is in seconds, 2592000 at most.",
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
