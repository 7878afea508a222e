"""Generator of the pages and Prometheus rules that come from the code: ``python docs/generate.py``."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside_daemon import __version__
from trackside_daemon.alerts.rules import rule_file, rule_text
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.cli.main import GROUPS as COMMANDS
from trackside_daemon.cli.main import load
from trackside_daemon.collectors.cgroup.cgroup import CgroupCollector
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector
from trackside_daemon.collectors.gpu.pod_owners import PodOwnersCollector
from trackside_daemon.collectors.host.cpu import CpuCollector
from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
from trackside_daemon.collectors.host.host import (
    DiskCollector,
    LoadCollector,
    MemoryCollector,
    TimeCollector,
    VmstatCollector,
)
from trackside_daemon.collectors.host.infiniband import InfinibandCollector
from trackside_daemon.collectors.host.network import NetworkCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.host.thermal import ThermalCollector
from trackside_daemon.collectors.process.process import ProcessCollector
from trackside_daemon.collectors.process.ranks import RanksCollector
from trackside_daemon.config.loading import variables
from trackside_daemon.config.names import describe, setting_paths
from trackside_daemon.documents.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, SPREAD
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.model.capture import FINAL
from trackside_daemon.model.families import alerts, daemon, derived, ray, rl, training
from trackside_daemon.model.families.catalogue import catalogue, metrics
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import ENDS
from trackside_daemon.model.troubles import GROUPS
from trackside_daemon.service.config import Config
from trackside_daemon.web.api.openapi import document
from trackside_daemon.web.api.overview.overview import MAX_ALERTS
from trackside_daemon.web.dashboard import STATIC

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from trackside_daemon.model.metric import Metric
    from trackside_daemon.model.troubles import Trouble

DOCS = Path(__file__).parent
DEPLOY = DOCS.parent / "deploy"
RULES = DEPLOY / "prometheus" / "trackside.rules.yml"
MANIFEST = DEPLOY / "kubernetes" / "components" / "prometheus" / "prometheusrule.yaml"
HOST = (
    *(CpuCollector, LoadCollector, MemoryCollector, VmstatCollector, PressureCollector, DiskCollector),
    *(FilesystemCollector, NetworkCollector, InfinibandCollector, CgroupCollector, ProcessCollector, TimeCollector),
    ThermalCollector,
)
METRICS = """# Metrics

This page lists every family that the daemon exports. It is generated from the definitions in the code. All values are in
base units; ratios are 0 to 1. A value that was not measured is absent: NaN never means "unknown". A NaN loss is a real NaN.

Training series have the labels `run`, the name that you chose, and `rank`. GPU series have `gpu` and `uuid`. Further facts
are labels of the `_info` families, which you can join:

```
trackside_training_loss * on (run) group_left (git_commit) trackside_training_run_info
```

The series of a finished run stay for `run.linger` (60 s), those of a lost run for 5 minutes. The run's state, info and end
stay for 15 minutes. A new run of the same name and owner replaces them at once.

Limits prevent a training that invents keys or runs from displacing the others: each
[owner](other-machines.md#who-owns-a-run) gets the same share. `trackside_series_rejected_total` counts what is over a limit.

Of a run with more than 64 ranks (`limits.ranks`), the page shows statistics in place of each rank, so that a thousand ranks
need some hundreds of series:

- the minimum, median, maximum and sum of each family in `trackside_training_rank_statistic`, and the ranks that have the
  minimum and the maximum in `trackside_training_extreme_rank`
- the lowest rank's own series, and the states of ranks in a state that at most 16 ranks have
- histograms as their sums over all ranks, with an empty `rank`
- rank by rank: values of at most 7 of the ranks, and families with more than one label besides `run` and `rank`

The API, the history, the detectors and the daemon's rules see every rank.

```
trackside_training_rank_statistic{family="trackside_training_loss", statistic="max"}
```

The daemon observes the end of a run from outside. The state is therefore right within moments, whatever killed the process.
The cause is in the log and in the history:

| the process | state | cause |
|---|---|---|
| called `finish`, or left a `with` block | as reported by the process | |
| raised an exception | failed | its type |
| ended with status 0, or another | finished, failed | `exit status 3` |
| died of SIGTERM, SIGINT | stopped | `SIGTERM`, `SIGINT` |
| died of another signal | failed | `SIGKILL`, `SIGSEGV`, … |
| was killed by the kernel because memory ran out | failed | `OOM killed` |
| is gone and the kernel does not report how (before Linux 6.15), or is silent for 30 s on another machine | lost | `unknown` |

A run and its ranks are `stalled` from the moment that the daemon finds [TrainingStalled](alerts.md#trainingstalled). A rank
is also `stalled` from the moment that the daemon finds [RankSilent](alerts.md#ranksilent) for it. The state lasts until the
next push. It is set even if the alert is turned off or silenced, but not without `alerts.enabled`. A stalled run is alive: its
processes exist and occupy their GPUs.

After the end of a script, Python and CUDA may take seconds to shut down, and can crash while they do. The page shows
`finished` when the process is gone, or after 30 s.

`/metrics?collect[]=NAME` and `?exclude[]=NAME` select families by the names of the sections below. `trackside` includes the
families of prometheus_client for the daemon's process (`process_*`, `python_*`).
"""
CONFIGURATION = """# Configuration

The daemon works without any configuration. A setting has the same name everywhere. You can set `sample.interval` as

- `--sample.interval=2s` on the command line,
- `TRACKSIDE_SAMPLE__INTERVAL=2s` in the environment,
- `sample: {interval: 2s}` in the YAML file that `--config.file` names.

A flag overrides the environment, and the environment overrides the file. Durations are `500ms`, `2s`, `1h30m` or a number of
seconds. Sizes are `10GiB`, `500MB` or a number of bytes. In the environment, separate the items of a list with commas.
`trackside check-config FILE` reports errors in a file. `trackside daemon --help` lists the flags that people set most often, and
`--help-all` all.

The daemon reads the file again on SIGHUP or, if you set `web.enable-lifecycle`, on `POST /-/reload`. `sample.interval`,
`run.linger`, `storage.interval`, `storage.retention.*`, `alerts.off`, `alerts.sinks.*` and `log.*` change at once; all other
settings need a restart. The daemon reads the file of `web.config.file` again whenever it changes:
[TLS and passwords](web.md).

| setting | variable | description |
|---|---|---|
"""
ALERTS = """
## Custom rules

You can add rules without code, in the YAML file:

```yaml
alerts:
  thresholds: {gpu-hot-margin-celsius: 8, disk-full-in: 12h, slow-step-ratio: 2}
  rules:
    - alert: RewardLow
      metric: key:reward/mean            # a key as it is pushed, or a family of docs/metrics.md
      labels: {run: "~big-.*"}           # ~ begins a regular expression of Prometheus, for the whole value
      below: 0.1
      for: 5m
      severity: warning                  # info, warning or critical
      summary: "the reward of {run} is {value}"
    - {alert: SwapUsed, metric: trackside_host_swap_used_bytes, over: trackside_host_swap_bytes, above: 0.5}
    - {alert: Slow, metric: trackside_training_tokens_total, rate: 1m, below: 50000, for: 2m, cooldown: 1h}
    - {alert: SwapGrows, metric: trackside_host_swap_used_bytes, change: 10m, above: 1e9}   # by a gigabyte in ten minutes
    - alert: CpuBusy                     # all CPUs together are busy for more than 85 % of the time
      metric: trackside_host_cpu_seconds_total
      labels: {mode: idle}
      rate: 1m
      over: trackside_host_cpus
      below: 0.15
      for: 5m
      summary: "the CPUs are idle for {value:percent} of the time"
    - {alert: LossIncrease, metric: key:loss, above: 1.1, relative-to: best, for-steps: 200}   # 10 % above its best
    - {alert: HalfSpeed, metric: trackside_training_steps_total, rate: 5m, below: 0.5, relative-to: baseline}
    - {alert: NoGpu, metric: trackside_gpu_up, labels: {gpu: "3"}, absent: true, for: 30s}
```

| key of a rule | meaning |
|---|---|
| `above`, `below` | the bound of the value, of its `rate` per second, of its `change` over a time, or of the ratio of one of these `over` the value of another family |
| `absent` | there is no such series |
| `mean` | the bound is that of the mean over a time, which smooths a noisy value |
| `relative-to` | the bound is that of the ratio to `best`, the best value of this series in this run so far (the lowest for `above`); to `start`, its mean in the first minute; or to `baseline`, the value at the same step of the pinned run of this name, else of the run before. Of the baseline there are pushed keys and the `rate` of `trackside_training_steps_total` |
| `for-steps` | for how many steps the condition must be true before the alert fires |
| `for`, `keep_firing_for` | how long the condition must be true before the alert fires, and false before it ends |
| `cooldown` | how long the alert does not fire again after its end |
| `summary`, `description` | texts; they may contain `{value}`, `{value:percent}`, `{value:bytes}`, `{value:duration}`, `{value:whole}`, `{threshold}`, `{since}` and each label by its name |

Each rule needs a distinct name. For families with `run` and `rank`, a rule evaluates only ranks that are alive, because the
values of an ended rank no longer change. Prometheus knows neither a run's past nor its steps, so that the rule that `trackside rules`
writes for `relative-to` or `for-steps` reads the daemon's alert. After a restart of the daemon, `best` and `start` begin again, unless
the alert fires.
"""
SINKS = """
## Notifications

Prometheus and its Alertmanager notify you of alerts, from `trackside_alert_firing`. Without them, use the sinks of the daemon:

```yaml
alerts:
  sinks:
    log: {severity: warning}
    alertmanager: {urls: "http://am1:9093,http://am2:9093", labels: "cluster=a"}   # all peers, no load balancer
    webhook: {url-file: /etc/trackside/webhook, bearer-file: /etc/trackside/token}
    apprise: {urls-file: /etc/trackside/apprise, severity: critical, also: [RunFinished]}
```

- **Secrets** are in files. The daemon reads them again for each message; it reads those of apprise at its start and at a
  reload. No log, error, page or command ever shows them.
- **Grouping**: alerts of a run that begin within a second are one message. At most one further message per minute follows.
  Only a new critical alert is sent at once.
- **Retries**: a message that a sink does not accept within 60 s counts as failed. The daemon retries a failed message, with
  increasing back-off, as long as its alert fires.
- **Ended alerts**: if an alert ends before its message is delivered, the daemon retries for an hour if the alert is critical,
  is a single event such as the end of a run, or was already sent. It counts all others as dropped.
- **Restarts**: the daemon stores what each sink has sent. After a restart it sends only what is new, including ends.
- **Ends**: each sink that has sent an alert also sends its end, even under a silence, but not the end of an info.
- **Alertmanager**: the daemon sends the firing alerts to it every minute. A silence of the daemon ends an alert there.
- **apprise**: each URL is a separate sink, `apprise:KIND:DIGITS`. The digits are a hash of the URL without its password.
- **log**: silences do not affect the log.
"""
STORAGE = """
## Storage

The history is one SQLite file, `history.db`, in `storage.path`. The parent of a directory that you name must exist; the daemon creates the
default one. Only one daemon may use it.

When the disk is full, `/metrics` continues to work, clients keep their samples, and writing resumes when there is space.

When the file exceeds `storage.retention.size`, the daemon deletes in this order:

1. the samples of ended runs, those that ended first before the others
2. the older samples of live runs
3. whole runs

Pinned runs keep everything. A run without samples keeps its charts.
"""
CLIENT = """
## Variables of the client

The client reads these variables; the daemon ignores them:

| variable | meaning |
|---|---|
| `TRACKSIDE_RUN_ID` | the run's id; the same on all ranks |
| `TRACKSIDE_RUN_NAME` | the run's name; by default the script's name |
| `TRACKSIDE_TAGS` | tags of the run, separated by commas |
| `TRACKSIDE_ENDPOINT` | where the daemon accepts pushes, `ipc://PATH` or `tcp://HOST:PORT`; with `ipc://` the commands query only that daemon |
| `TRACKSIDE_KEY_FILE` | the key for a daemon on another machine, [from `trackside keys`](other-machines.md) |
| `TRACKSIDE_FLUSH_TIMEOUT` | how many seconds the end of a run may wait for its last acknowledgement; default 2 |
| `TRACKSIDE_RANKS` | `zero` lets only rank 0 push; default `all` |
| `TRACKSIDE_CODE` | `0`: [the code of a run](history.md#the-code-of-a-run) is not stored |
| `TRACKSIDE_DISABLED` | `1` turns the client off |
| `TRACKSIDE_LAUNCH` | set by [`trackside run`](run.md) to identify the runs of its command |
| `POD_NAME`, `POD_NAMESPACE`, `CONTAINER_NAME` | where in Kubernetes the training runs, [set by its manifest](host.md#in-containers-and-kubernetes) |

Our commands read `TRACKSIDE_WEB__CREDENTIALS_FILE`, the file of [`--web.credentials-file`](web.md#our-commands).

Without an endpoint the client searches for `push.sock` in `$XDG_RUNTIME_DIR/trackside`, or, if that variable is not set or
names no directory that you can write to, in `/run/user/UID/trackside` and `/tmp/trackside-UID`; then in `/run/trackside`. So a
job with an `XDG_RUNTIME_DIR` of its own never pushes to another job of the same user. The daemon binds in the first of them that
it may use. `trackside doctor`, and the client at log level INFO, show which daemon was found and why. The client
accepts a directory of another user only for `/run/trackside`: [other users](other-machines.md#other-users-of-this-machine).
Commands find the daemon by `push.address` and `push.token` next to the socket. They ignore files that another user could have
made or replaced, and `trackside doctor` names them.
"""


HTTP_API = """# HTTP API

The daemon serves this API below `/api/v1`. Every request needs the token of the daemon, `Authorization: Bearer TOKEN`, or the
credentials of the [web configuration](web.md). `trackside token` prints the token, and `trackside token --role read` one that can only
read: `curl -H "Authorization: Bearer $(trackside token --role read)" http://127.0.0.1:21790/api/v1/runs`. The [role](web.md#roles) of
each endpoint stands below it. A token lasts over restarts, until `trackside token --rotate`.
`/api/v1/openapi.json` is the same reference as an OpenAPI document.

Answers are JSON unless stated otherwise. An error is `{"error": {"reason": "…", "message": "…"}}` with a status of 400 or higher.
Times are Unix seconds. This page is generated from the daemon's OpenAPI document.
"""

COMMANDS_PAGE = """# Commands

`trackside COMMAND --help` prints the same. Commands that read the history ask the running daemon, or read the file if there is
none. `--web.credentials-file FILE`, before or after any command, names the
[credentials of a daemon that requires them](web.md#our-commands). The exit status is 0, 1 for what a command could not do, and 2
for a wrong command line or configuration.

An option that is one of the [settings](configuration.md) is described there.
"""


def sections() -> dict[str, list[Metric]]:
    """Return every exported family, grouped by the source that it comes from."""
    checkpoints = list(training.AUDITED)
    of_training = [*metrics(vars(training)), *metrics(vars(rl))]
    return {
        "training": [
            *(
                one
                for one in dict.fromkeys(of_training)
                if one not in {training.PEAK_FLOPS, training.SERIES_REJECTED, *checkpoints}
            ),
            derived.RANK_STATISTIC,
            derived.EXTREME_RANK,
        ],
        "alerts": _starting(alerts, "trackside_alert"),
        "captures": _starting(daemon, "trackside_capture"),
        "checkpoints": checkpoints,
        "bridges": _starting(daemon, "trackside_bridge"),
        "notifications": _starting(alerts, "trackside_notifications"),
        "gpu": list(GpuCollector.metrics),
        "nvml": list(NvmlCollector.metrics),
        "ranks": list(RanksCollector.metrics),
        **{one.name: list(one.metrics) for one in HOST},
        "kubelet": list(PodOwnersCollector.metrics),
        "ray": list(ray.FAMILIES),
        "sampler": _starting(daemon, "trackside_collector"),
        "ingest": [*_starting(daemon, "trackside_ingest"), training.SERIES_REJECTED],
        "pipeline": _starting(daemon, "trackside_pipeline"),
        "history": _starting(daemon, "trackside_history"),
        "trackside": [
            daemon.BUILD_INFO,
            daemon.RELOADED,
            daemon.RELOADED_AT,
            daemon.CONFIG_HASH,
            daemon.CERTIFICATE_END,
        ],
    }


def _starting(module: ModuleType, begin: str) -> list[Metric]:
    return [one for one in metrics(vars(module)) if one.name.startswith(begin)]


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    parts = [METRICS]
    for name, members in sections().items():
        parts.append(f"\n## {name}\n\n| family | type | labels | unit | meaning and source |\n|---|---|---|---|---|\n")
        parts += [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} "
            f"| {one.unit.replace('_', ' ')} | {one.help} |\n"
            for one in sorted(members, key=lambda one: one.name)
        ]
    return "".join(parts)


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    rows = []
    for variable, path in variables(Config).items():
        name = ".".join(path).replace("_", "-")
        what = describe(Config, name).replace("|", "\\|")
        rows.append(f"| `{name}` | `{variable}` | {what} |\n")
    return CONFIGURATION + "".join(rows) + ALERTS + SINKS + STORAGE + CLIENT


def commands_page() -> str:
    """Return the text of docs/commands.md, made from the commands' own help."""
    parts = [COMMANDS_PAGE]
    for group, commands in COMMANDS.items():
        parts.append(f"\n## {group}\n\n| command | |\n|---|---|\n")
        parts += [f"| [`{name}`](#{name}) | {one.summary} |\n" for name, one in commands.items()]
        parts += [_command(name, load(name), 3) for name in commands]
    return "".join(parts)


def _command(name: str, command: Any, level: int) -> str:
    """Return the section of a command: its usage, its sentence, its options and its examples; then those of its own commands."""
    members = getattr(command, "commands", {})
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([f"trackside {name}", *map(_argument, arguments), *(["COMMAND"] if members else [])])
    paths = set(map("__".join, setting_paths(Config)))
    settings = [one for one in command.params if one.name in paths and "__" in one.name]
    rows = [
        f"| `{_spelling(one)}` | {_meaning(one)} |\n"
        for one in command.params
        if one not in settings and not one.hidden
    ]
    parts = [f"\n{'#' * level} {name}\n\n`{usage}`\n\n{_paragraphs(command.help)}\n"]
    if rows:
        parts += ["\n| argument or option | meaning |\n|---|---|\n", *rows]
    if settings:
        names = ", ".join(f"`{one.opts[0]}`" for one in settings)
        parts.append(f"\n{_filled(f'Settings as options: {names}.')}\n")
    for example in (line for line in (command.epilog or "").split("\n") if line.startswith("Example: ")):
        parts.append(f"\nExample: `{example.removeprefix('Example: ')}`\n")
    parts += [_command(f"{name} {under}", one, level + 1) for under, one in members.items()]
    return "".join(parts)


def _paragraphs(text: str) -> str:
    """Return a help text as Markdown; a paragraph that click leaves as it is becomes a block."""
    parts = []
    for one in text.split("\n\n"):
        kept = one.startswith("\b\n")
        parts.append(f"```\n{one.removeprefix(chr(8)).strip()}\n```" if kept else _filled(one))
    return "\n\n".join(parts)


def _filled(text: str) -> str:
    return textwrap.fill(text, 128, break_long_words=False, break_on_hyphens=False)


def _argument(argument: Any) -> str:
    """Return an argument as in a usage: ``RUN``, ``[RUN]``, ``RUN...``."""
    name = (argument.metavar or argument.name.upper()).strip("{}")
    name = name.upper() if name.islower() else name
    if not argument.required and not name.startswith("["):
        name = f"[{name}]"
    return name if argument.nargs == 1 or name.endswith("...") else f"{name}..."


def _spelling(parameter: Any) -> str:
    """Return how a parameter is written: ``RUN``, ``--limit N``, ``--clear / --no-clear``."""
    if parameter.param_type_name == "argument":
        return _argument(parameter).replace("|", "\\|")
    names = ", ".join(parameter.opts) + "".join(f" / {one}" for one in parameter.secondary_opts)
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return f"{names}{value}".replace("|", "\\|")


def _meaning(parameter: Any) -> str:
    """Return the help of a parameter in one line, with its default."""
    text, default = " ".join((parameter.help or "").split()), parameter.default
    if isinstance(parameter.show_default, str):
        text += f" [default: {parameter.show_default}]"
    elif parameter.show_default is not False and default not in (None, False, "", (), []) and not callable(default):
        text += f" [default: {'on' if default is True else getattr(default, 'value', default)}]"
    return text.replace("|", "\\|").replace("<", "&lt;")


def http_api_page() -> str:
    """Return the text of docs/http-api.md, made from the daemon's OpenAPI document."""
    parts = [HTTP_API]
    for path, operations in document(__version__)["paths"].items():
        for method, operation in operations.items():
            parts.append(f"\n## {method.upper()} {path}\n\n{operation['summary']} Role: `{operation['x-role']}`.\n")
            if description := operation.get("description"):
                parts.append(f"\n{description}\n")
            if parameters := operation["parameters"]:
                parts.append("\n| parameter | in | type | meaning |\n|---|---|---|---|\n")
                parts += [
                    f"| `{one['name']}` | {one['in']} | {_kind(one)} | {one['description']} |\n" for one in parameters
                ]
            if body := operation.get("requestBody"):
                parts.append(f"\nBody: {_code(body['description'])}\n")
    return "".join(parts)


def alerts_page(page: str) -> str:
    """Return docs/alerts.md with the table and the sections of the alerts from the catalogue; the rest of *page* stays."""
    table, sections = ["| alert | severity |\n|---|---|\n"], []
    for group, (intro, troubles) in GROUPS.items():
        table.append(f"| **{group}** | |\n")
        table += [f"| [{one.name}](#{one.name.lower()}) | {one.severity} |\n" for one in troubles]
        sections += [f"## {group}\n", *([f"{intro}\n"] if intro else []), *map(_alert, troubles)]
    for name, text in (("table", "".join(table)), ("sections", "\n".join(sections))):
        begin, end = f"<!-- {name} of model/troubles.md -->\n", f"\n<!-- end of the {name} -->"
        page = page.partition(begin)[0] + begin + "\n" + text + end + page.partition(end)[2]
    return page


def _alert(trouble: Trouble) -> str:
    """Return the section of an alert: its fixed summary and meaning, its next steps by case, and what else there is."""
    steps = [f"**Next steps**{f' ({case})' if case else ''}: {text}" for case, text in trouble.steps.items()]
    parts = [f"### {trouble.name}", f"{trouble.summary} {trouble.meaning}", *steps, trouble.more]
    return "\n\n".join(filter(None, parts)) + "\n"


def _kind(parameter: Mapping[str, Any]) -> str:
    """Return the type of a parameter: ``string``, or ``string, repeatable`` for a list."""
    schema = parameter["schema"]
    return f"{schema['items']['type']}, repeatable" if schema["type"] == "array" else schema["type"]


def _code(text: str) -> str:
    """Return an example as code; a description of a body in words stays as it is."""
    return f"`{text}`" if text.startswith("{") else text


def _groups() -> list[rule_file.Group]:
    """Return the rule groups of a daemon without a configuration."""
    return rule_file.groups(AlertsSection(), catalogue(), rule_file.RuleFileOptions())


def rules() -> str:
    """Return the text of deploy/prometheus/trackside.rules.yml."""
    return rule_text.prometheus(_groups(), "trackside rules")


def manifest() -> str:
    """Return the same rules as a PrometheusRule manifest for deploy/kubernetes."""
    return rule_text.kubernetes(_groups(), "trackside rules --format kubernetes", {}, "")


def vocabulary() -> str:
    """Return the module with the words and limits that the daemon and its pages share."""
    words = {
        "ENDED": (ENDS, "The states of a run that has ended."),
        "FINAL": (sorted(FINAL), "The states that a capture never leaves."),
        "SEVERITIES": (SEVERITIES, "From the least to the most severe."),
        "MAX_ALERTS": (MAX_ALERTS, "The alerts that the overview lists at most."),
        "LOSSES": (LOSSES, "The names of the loss, the best first."),
        "LOSS_ENDS": (training.LOSS_ENDS, "Other losses end or begin so."),
        "LOSS_BEGINS": (training.LOSS_BEGINS, ""),
        "LOWER_IS_BETTER": (sorted(LOWER_IS_BETTER), "Words of the keys whose lowest value is the best one."),
        "HIGHER_IS_BETTER": (sorted(HIGHER_IS_BETTER), ""),
        "SPREAD": (sorted(SPREAD), "Words of the keys of which no value is better."),
    }
    lines = ["// What the daemon and its pages both name. docs/generate.py writes it from the daemon's code."]
    for name, (value, comment) in words.items():
        lines += [f"// {comment}"] if comment else []
        text = f"export const {name} = {json.dumps(value)};"
        lines += textwrap.wrap(text, 120, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([*lines, ""])


def main() -> None:
    """Write all generated files."""
    RULES.write_text(rules(), encoding="utf-8")
    MANIFEST.write_text(manifest(), encoding="utf-8")
    (STATIC / "vocabulary.js").write_text(vocabulary(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    alerts_md = DOCS / "alerts.md"
    alerts_md.write_text(alerts_page(alerts_md.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "http-api.md").write_text(http_api_page(), encoding="utf-8")
    (DOCS / "configuration.md").write_text(configuration_page(), encoding="utf-8")
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
