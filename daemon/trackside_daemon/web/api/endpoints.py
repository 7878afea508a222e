"""The table of API endpoints, from which both the routes and the OpenAPI document are built."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trackside_daemon.model.families.gpu import PREFIX

_SERIES = ("key", "rank", "attempt", "by", "from", "to", "points")
_LAYERS = ("kind", "rank", "attempt", "by", "from", "to", "points")
_BUCKETS = (
    "Points are [step, time, min, max, last], with step and time of the bucket's last sample. With points=0 they are every "
    "sample as [step, time, value]. If a bucket contains NaN or infinite samples, nonfinite has their number for each "
    "point, in the same order. A response has at most 200000 buckets, so with many series each has fewer than requested. "
    "NaN and infinities are the texts nan, inf and -inf. unit is the number of samples in the coarsest cell. If it is "
    "above 1, the edges of the window are rounded outwards to whole cells. With mean=true, means has the mean of each point's "
    "finite samples, or of the last ones of its cells; it is absent if every point is one sample or cell."
)


class Endpoint(NamedTuple):
    """An API endpoint.

    Attributes:
        handler: The name of the method that answers.
        body: An example or description of the request's body; empty for none.
        errors: Statuses of its errors, besides those that `openapi` derives.
        types: Media types of its answer.
        group: The object whose method it is: `HistoryApi`, `DiagnosisApi`, `AlertsApi`, `CapturesApi`, `CheckpointsApi`, `LayersApi`,
            `GpuApi`, `AgentsApi`, `MachineApi`, `ProcessesApi`, `OverviewApi`, `ConsoleApi`, `MediaApi`, or `WebApp` for ``daemon``.
    """

    method: str
    path: str
    handler: str
    summary: str
    parameters: tuple[str, ...] = ()
    description: str = ""
    body: str = ""
    errors: tuple[int, ...] = ()
    types: tuple[str, ...] = ("application/json",)
    group: Literal[
        "history",
        "diagnosis",
        "alerts",
        "captures",
        "checkpoints",
        "layers",
        "gpu",
        "agents",
        "machine",
        "processes",
        "overview",
        "console",
        "media",
        "daemon",
    ] = "history"


# All endpoints. In a path, special characters of an id are percent-encoded, a slash as %2F.
ENDPOINTS = (
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
        ("run",),
        types=("text/event-stream",),
        description="Each event named overview has the response of /overview. With run, events named run follow, with the run's id, "
        "state, highest step, the time of the event, and values: for each key and rank the newest [step, time, value], at "
        "most 4096 series. A slow client misses events and receives the newest. At most 100 clients can listen; further "
        "ones get status 503. A browser's EventSource cannot send the token, so a page uses fetch with 'Authorization: "
        "Bearer TOKEN' and reads the body as it arrives. No URL, cookie or log then contains the token.",
        group="overview",
    ),
    Endpoint(
        "GET",
        "/runs",
        "runs",
        "List the runs, newest first.",
        ("name", "tag", "state", "since", "until", "limit", "launch", "config", "metric"),
        "With config=true, config has the configuration of each run. metric is a key, and may be repeated: metrics has its last, min and max of "
        "each run's lowest rank, as far as the history has packed them. Runs that are on /metrics also have the values of their ranks. limit is at most 10000, the default; live runs are listed beyond it, unless there is another filter. "
        "For older runs, repeat the request with until set to the start of the last one.",
    ),
    Endpoint("GET", "/keys", "keys", "List the keys that runs have pushed, those of the most runs first."),
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
    Endpoint("GET", "/runs/{id}/series", "one_series", "Return one key of a run.", _SERIES, _BUCKETS),
    Endpoint(
        "GET",
        "/runs/{id}/export",
        "export",
        "Download samples of a run as a file.",
        ("format", "key", "rank", "attempt", "by", "from", "to", "resources"),
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
        ("steps",),
        "The default is 100 steps and the maximum 10000. ranks are the ranks that received the request; one that watches "
        "no model ignores it.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/layers",
        "layer_map",
        "Return one value of all layers of an observed model over steps.",
        ("value", *_LAYERS),
        "values has a list for each of layers, with a number for each of steps, or null. Without rank, the parts of all ranks "
        "(64 at most) are one model; without attempt, it is the last one. points is 200 by default and 2000 at most; with more "
        "measured steps, several are merged: their largest value for largest and logit, else their mean.",
        group="layers",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/layer-values",
        "layer_values",
        "Return the newest values of all layers of an observed model.",
        description="kinds has for each kind its last measured step, and the values of each of its layers.",
        group="layers",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/layers/{layer}",
        "layer",
        "Return one layer's distribution over steps.",
        _LAYERS,
        "quantiles has, by share, a value for each of steps. counts has for each step the number of zeros, of NaN and infinities "
        "(nonfinite), and the counts of the other values by the upper bounds of their buckets: a bucket reaches from its bound to "
        "half of it, or to twice of it below zero, and the quantiles are interpolated. Merged steps have all their values. columns are those of the heat map.",
        group="layers",
    ),
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
    Endpoint(
        "GET",
        "/runs/{id}",
        "run",
        "Return everything about a run except its samples.",
        ("limit", "offset"),
        "series is the number of the run's series, and metrics are limit of them after offset, of the lowest ranks and their "
        "newest attempts first. limit is 20000 by default and 100000 at most. An attempt's phases are the seconds in each phase, by rank, and its step_seconds the mean duration of a step, without evaluation and checkpoints. Its lost are the seconds that "
        "are not useful compute, by rank and account of the ledger of time. The run's goodput is the share of useful compute in its "
        "time, and lost the shares of the other accounts, as means over the ranks. They are absent if the run reported nothing of its time. mfu is the model's FLOPs divided by what the "
        "GPUs could have done during its attempts. reinforcement has the key of each quantity of reinforcement learning, "
        "with a factor of its values, and the seconds of the ranks by role; it is null for other trainings.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/diagnosis",
        "diagnosis",
        "Return where the time of a run went, and the causes that cost most.",
        ("baseline", "key"),
        group="diagnosis",
        description="ledger has wall seconds by account; they sum to wall_seconds, and are means over the ranks. causes are the "
        "costliest first; the gain of removing one is expected between low and high seconds, and no second has two causes. "
        "lost_seconds is null for a cause whose time is not measured, or that costs no time. ledger_by_rank has the accounts of "
        "each rank. unknown has what is not measured, and why. resources are statistics of GPUs, host and processes, suggestions "
        "are about the size of the job, trends are slopes per 1,000 steps, and comparison is that of /comparison. "
        "hang is the verdict on a run that hangs. If "
        "no alert has one, the processes of a run without a step for 10 s and ten times its usual step are asked, for some "
        "seconds, and the verdict has quiet_seconds, the time since the last step.",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/performance",
        "performance",
        "Return how fast a run was over time.",
        ("from", "to", "points"),
        group="diagnosis",
        description="times has the end of each of points (120, at most 500) equal parts of the time; the lists have a value for "
        "each of them, null where it is unknown. step has p50 and p99 of the seconds per step of the lowest rank. "
        "tokens_per_second, samples_per_second and mfu are over all ranks. phases has seconds per step by phase, as means over "
        "the ranks. ranks has for each rank own, the seconds per step in which it waits for no other rank, wait, those in "
        "which it waits for the slowest one, and ratio, own over that of the median rank; straggler_ratio is the ratio from which "
        "StragglerRank counts a rank as slow. They are of the lowest 64 ranks (most_ranks), if they name phases.",
    ),
    Endpoint(
        "GET",
        "/comparison",
        "comparison",
        "Return how runs differ from a baseline, with intervals from the noise of the runs.",
        ("run", "baseline", "key"),
        "An effect has its quantity (step_time, step_time_p25, throughput, gpu_memory, host_memory, energy, cost, or a key, which is compared at the last "
        "step that all runs have, and with _at_tokens at their last common number of tokens), unit, better (lower, higher or "
        "empty), value and baseline (means of the runs), ratio, and difference. low and high are the 95 % interval of the "
        "ratio, difference_low and difference_high that of the difference. What is unknown is null, and unknown states the "
        "reason; nonfinite is baseline or value if that side has NaN or infinite values there, else empty. chosen is how the baseline was found: run, tag, pinned or name; empty if there is none.",
        group="diagnosis",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/report",
        "report",
        "Return what a report has about a run: itself, its diagnosis, alerts, events, layers and charts.",
        ("size",),
        "size is the most bytes of the charts. They are those of the lowest rank, the loss first, with step and time, in "
        "seconds since the run's start, in axes, and null for NaN and infinities; left_out is the number of keys without one. "
        "layers are at most 20 of an observed model, those that stand out most first, as of their last measurement.",
    ),
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
    Endpoint(
        "GET",
        "/runs/{id}/captures",
        "run_captures",
        "List the captures of a run, oldest first, without their summaries.",
        group="captures",
    ),
    Endpoint(
        "GET",
        "/captures",
        "captures",
        "List the captures of all runs, oldest first, without their summaries.",
        group="captures",
    ),
    Endpoint(
        "GET",
        "/captures/{capture}",
        "capture",
        "Return a capture with its summary.",
        description="state is asked, recording, written, summarised or failed. text has the summary as lines. In summary.ranks, "
        "times are seconds per step.",
        group="captures",
    ),
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
        ("allow-actions",),
        "A message is a JSON-RPC object; one without an id is answered by status 202. A call of the tool wait is answered when "
        "something happens. See docs/agents.md.",
        body='{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}',
        group="agents",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/checkpoints",
        "checkpoints",
        "List the checkpoints of a run in the order of saving.",
        ("metric",),
        "state is writing, complete, damaged or gone; good is true for a complete one that an audit has found intact, at checked. "
        "reason says why one is damaged, and in which file. value is that of the metric as reported with it, else the last "
        "one at or before its step, of the attempt that wrote it: by default of the first metric that was reported with a "
        "checkpoint, else of the loss.",
        group="checkpoints",
    ),
    Endpoint(
        "POST",
        "/runs/{id}/checkpoints/audit",
        "audit",
        "Audit the checkpoints of a run again.",
        description="The answer comes at once; checked of each checkpoint is later than the request when its audit is over.",
        group="checkpoints",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/console",
        "console",
        "Return what the command of a run printed, if trackside run --console started it.",
        ("lines", "before", "search", "colors"),
        "lines are [number, text], the oldest first: the newest ones, or those before a line number, or those that contain "
        "a text in any case. They have no escape sequences; with colors, each is [number, text, parts], and the parts are "
        "[begin, end, style]: indices of characters, and a colour, bold, or both. total is the number of kept lines, and more "
        "tells whether there are earlier ones. bytes is the size of the kept output, at most 10 MiB.",
        group="console",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/media",
        "media",
        "List the images, texts and tables of a run, the oldest first.",
        description="kind is image, text or table. key is the name that the training code gave it.",
        group="media",
    ),
    Endpoint(
        "GET",
        "/runs/{id}/media/{file}",
        "media_file",
        "Send an image, a text or a table of a run.",
        types=("image/png", "text/plain", "application/json"),
        group="media",
    ),
    Endpoint("DELETE", "/runs/{id}", "delete", "Delete a run that has ended.", errors=(409,)),
    Endpoint(
        "GET", "/series", "series", "Return series of one or more runs.", ("run", *_SERIES, "ranks", "mean"), _BUCKETS
    ),
    Endpoint(
        "GET",
        "/events",
        "events",
        "List events, oldest first.",
        ("run", "limit"),
        "limit is 1000 by default and 10000 at most.",
    ),
    Endpoint(
        "GET",
        "/alerts",
        "alerts",
        "List alerts that fire or have fired, oldest first.",
        ("run", "severity", "alert", "firing", "evidence", "limit"),
        "silenced_until is the end of the silence that matches a firing alert, or null. notified lists the receivers that "
        "got a notification. dismissed has the time and the comment if somebody marked the alert as a false alarm, else it is "
        "null. limit is 1000 by default, and 10000 at most with evidence=false.",
        group="alerts",
    ),
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
    Endpoint("GET", "/alerts/{number}", "alert", "Return one alert with its evidence.", errors=(400,), group="alerts"),
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
    Endpoint("GET", "/silences", "silences", "List the active silences by their end, earliest first.", group="alerts"),
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
        ("name", "id"),
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
        ("key", "from", "to", "points"),
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
