"""Writes the pages and Prometheus rules that are made from the code: python docs/generate.py."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon import about, pipeline, watching
from trackside_daemon.alert_sections import AlertsSection
from trackside_daemon.alerts import delivery, rule_file, rule_text
from trackside_daemon.alerts import families as alerts
from trackside_daemon.collectors.cgroup import CgroupCollector
from trackside_daemon.collectors.cpu import CpuCollector
from trackside_daemon.collectors.disk import DiskCollector
from trackside_daemon.collectors.filesystem import FilesystemCollector
from trackside_daemon.collectors.gpu import GpuCollector
from trackside_daemon.collectors.infiniband import InfinibandCollector
from trackside_daemon.collectors.load import LoadCollector
from trackside_daemon.collectors.memory import MemoryCollector
from trackside_daemon.collectors.network import NetworkCollector
from trackside_daemon.collectors.nvml import NvmlCollector
from trackside_daemon.collectors.pressure import PressureCollector
from trackside_daemon.collectors.process import ProcessCollector
from trackside_daemon.collectors.ranks import RanksCollector
from trackside_daemon.collectors.thermal import ThermalCollector
from trackside_daemon.collectors.time import TimeCollector
from trackside_daemon.collectors.vmstat import VmstatCollector
from trackside_daemon.config import describe, variables
from trackside_daemon.detectors.straggler import RATIO
from trackside_daemon.history import writer
from trackside_daemon.ingest import sessions
from trackside_daemon.metric import Metric
from trackside_daemon.sampler import Sampler
from trackside_daemon.training import families

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

Every family that the daemon exports, generated from the definitions in the code. Base units throughout; ratios are 0 to
1. What was not measured is absent: there is no NaN for "unknown". A NaN loss is a real NaN.

Training series carry `run`, the name that the user chose, and `rank`; GPU series `gpu` and `uuid`. What else is known
stands on the `_info` families, to be joined:

```
trackside_training_loss * on (run) group_left (git_commit) trackside_training_run_info
```

A finished run's series stay for `run.linger` (60 s), then vanish; its state, info and end stay for 15 minutes. A new run
of the same name takes their place at once. The series of a run that was lost stay for 5 minutes. Limits keep a training
that invents keys from crowding out the others; what is over one is counted in `trackside_series_rejected_total`.

How a run ends is seen from outside, so the state is right within moments whatever killed it; the cause is in the log and
in the history:

| the process | state | cause |
|---|---|---|
| called `finish`, or left a `with` block | as said | |
| raised an exception | failed | its type |
| ended with status 0, or another | finished, failed | `exit status 3` |
| died of SIGTERM, SIGINT | stopped | `SIGTERM`, `SIGINT` |
| died of another signal | failed | `SIGKILL`, `SIGSEGV`, … |
| was killed by the kernel for want of memory | failed | `OOM killed` |
| is gone and the kernel does not say how (before Linux 6.15), or is silent for 30 s on another machine | lost | `unknown` |

A run is `stalled`, with its ranks, from when [TrainingStalled](alerts.md#trainingstalled) is found, and so is a rank of which
[RankSilent](alerts.md#ranksilent) is, until its next push; also when the alert is off or silenced, but not without
`alerts.enabled`. A stalled run lives: its processes and their GPUs are held.

After a script's end Python and CUDA may take seconds to be torn down, and can crash there: the page says `finished` when
the process is gone, or after 30 s.

`/metrics?collect[]=NAME` and `?exclude[]=NAME` choose by the names of the sections below; to `trackside` belongs what
prometheus_client says of the daemon's own process too (`process_*`, `python_*`).
"""
CONFIGURATION = """# Configuration

Everything works with none. A setting has one name everywhere: `sample.interval` is

- `--sample.interval=2s` on the command line,
- `TRACKSIDE_SAMPLE__INTERVAL=2s` in the environment,
- `sample: {interval: 2s}` in the YAML file that `--config.file` names.

A flag counts before the environment, and that before the file. Durations are `500ms`, `2s`, `1h30m` or a number of
seconds, sizes `10GiB`, `500MB` or a number of bytes; in the environment, lists are separated by commas. `trackside
check-config FILE` says what is wrong with a file. On SIGHUP, or by `POST /-/reload` when `web.enable-lifecycle` allows
it, the daemon reads it again; `sample.interval`, `run.linger`, `storage.interval`, `storage.retention.*`, `alerts.off`,
`alerts.sinks.*` and `log.*` change at once, the others need a restart. The file of `web.config.file` is read anew by
itself: [TLS and passwords](web.md).

| setting | variable | what it is |
|---|---|---|
"""
ALERTS = """
A rule of your own needs no code. In the YAML file:

```yaml
alerts:
  thresholds: {gpu-hot-margin-celsius: 8, disk-full-in: 12h, slow-step-ratio: 2}
  rules:
    - alert: RewardLow
      metric: key:reward/mean            # a key as it is pushed, or a family of docs/metrics.md
      labels: {run: "~big-.*"}           # with ~ a regular expression, which matches all of a value
      below: 0.1
      for: 5m
      severity: warning                  # info, warning or critical
      summary: "the reward of {run} is {value}"
    - {alert: SwapUsed, metric: trackside_host_swap_used_bytes, over: trackside_host_swap_bytes, above: 0.5}
    - {alert: Slow, metric: trackside_training_tokens_total, rate: 1m, below: 50000, for: 2m, cooldown: 1h}
    - {alert: SwapGrows, metric: trackside_host_swap_used_bytes, change: 10m, above: 1e9}   # by a gigabyte in ten minutes
    - {alert: NoGpu, metric: trackside_gpu_up, labels: {gpu: "3"}, absent: true, for: 30s}
```

| in a rule | what it is |
|---|---|
| `above`, `below` | the bound of the value, of its `rate` a second or its `change` over a time, or of its share `over` another family's |
| `absent` | there is no such series |
| `for`, `keep_firing_for` | how long it is so before the alert fires, and not so before it ends |
| `cooldown` | how long it does not fire anew after its end |
| `summary`, `description` | `{value}`, `{value:percent}`, `{value:bytes}`, `{value:duration}`, `{value:whole}`, `{threshold}`, `{since}` and each label by its name |

Each rule has a name of its own. Of a family with `run` and `rank` it looks at ranks that live: what the page keeps of one
that has ended stands still, and is no trouble.
"""
SINKS = """
Alerts reach people by Prometheus and its Alertmanager, from `trackside_alert_firing`; where there is none, by sinks of
the daemon's own:

```yaml
alerts:
  sinks:
    log: {severity: warning}
    alertmanager: {urls: "http://am1:9093,http://am2:9093", labels: "cluster=a"}   # all peers, no load balancer
    webhook: {url-file: /etc/trackside/webhook, bearer-file: /etc/trackside/token}
    apprise: {urls-file: /etc/trackside/apprise, severity: critical, also: [RunFinished]}
```

Secrets stand in files, which are read anew for each message, but for those of apprise, which are read at a start and at a
reload; no log, error, page or command ever shows them. Alerts of a run that begin within a second are one message; after
it comes one a minute at most, and at once only for a critical one. A message that is not taken is tried again, with a
growing pause, as long as its alert fires. What is over by then is told all the same, for an hour, if it is critical,
happened once, as the end of a run does, or was told before; all else is counted as dropped. What a sink has told is kept:
after a restart of the daemon only what is new is told, an end too. That an alert is over is told by each sink that told
of it, under a silence too, but not of an info. A sink that does not take a message within 60 s has failed it.
Alertmanagers are told each minute of what fires; a silence of the daemon's is an end to them. Each URL of apprise is a
sink of its own, `apprise:KIND:DIGITS`; the digits are of the URL without its password.
The log takes no notice of silences.
"""
STORAGE = """
The history is one SQLite file, `history.db`, in `storage.path`, which has to be there when it is named and is made when
it is not; one daemon alone may use it. When the disk is full, `/metrics` goes on, clients keep their samples, and writing
resumes when there is room. When the file outgrows `storage.retention.size`, samples of the runs that ended first go
before the older samples of live ones, and both before whole runs; pinned runs keep all they have. What is thinned keeps
its charts.
"""
CLIENT = """
The client reads these, and the daemon leaves them alone:

| variable | what it is |
|---|---|
| `TRACKSIDE_RUN_ID` | the run's id; the same on all ranks |
| `TRACKSIDE_RUN_NAME` | the run's name; default the script's |
| `TRACKSIDE_TAGS` | tags of the run, separated by commas |
| `TRACKSIDE_ENDPOINT` | where the daemon takes pushes, `ipc://PATH` or `tcp://HOST:PORT`; at `ipc://` the commands ask that daemon, and no other |
| `TRACKSIDE_KEY_FILE` | the key with which a daemon on another machine is reached, [by `trackside keys`](other-machines.md) |
| `TRACKSIDE_FLUSH_TIMEOUT` | how many seconds the end of a run may wait for its last acknowledgement; default 2 |
| `TRACKSIDE_RANKS` | `zero` lets only rank 0 push; default `all` |
| `TRACKSIDE_DISABLED` | `1` turns the client off |
| `TRACKSIDE_LAUNCH` | set by [`trackside run`](run.md), which by it knows the runs of its command |
| `POD_NAME`, `POD_NAMESPACE`, `CONTAINER_NAME` | where in Kubernetes the training runs, [set by its manifest](host.md#in-containers-and-kubernetes) |

Our commands read `TRACKSIDE_WEB__CREDENTIALS_FILE`, the file of [`--web.credentials-file`](web.md#our-commands).

Without an endpoint the client looks for `push.sock` in `$XDG_RUNTIME_DIR/trackside`, `/run/user/UID/trackside`,
`/tmp/trackside-UID` and `/run/trackside`, in this order; the daemon binds in the first of them that it may use. Only
the last is looked at when it belongs to another user: [other users](other-machines.md#other-users-of-this-machine).
"""


def sections() -> dict[str, list[Metric]]:
    """Every family, by the source that it comes from."""
    training = [
        one for one in vars(families).values() if isinstance(one, Metric) and one is not families.SERIES_REJECTED
    ]
    ingest = [one for one in vars(sessions).values() if isinstance(one, Metric)]
    return {
        "training": [*dict.fromkeys([*training, *families.KNOWN.values(), *families.MEMORY.values(), RATIO])],
        "alerts": [alerts.FIRING, alerts.SILENCED, alerts.BEGUN, alerts.EXCESS],
        "notifications": [one for one in vars(delivery).values() if isinstance(one, Metric)],
        "gpu": list(GpuCollector.metrics),
        "nvml": list(NvmlCollector.metrics),
        "ranks": list(RanksCollector.metrics),
        **{one.name: list(one.metrics) for one in HOST},
        "sampler": list(Sampler.metrics),
        "ingest": [*ingest, families.SERIES_REJECTED],
        "pipeline": [pipeline.FAILURES],
        "history": [writer.SIZE, writer.SAMPLES, writer.EXCESS],
        "trackside": [about.BUILD_INFO, about.RELOADED, about.RELOADED_AT],
    }


def metrics_page() -> str:
    """docs/metrics.md."""
    parts = [METRICS]
    for name, members in sections().items():
        parts.append(
            f"\n## {name}\n\n| family | type | labels | unit | what it is, and where it comes from |\n|---|---|---|---|---|\n"
        )
        parts += [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} "
            f"| {one.unit.replace('_', ' ')} | {one.help} |\n"
            for one in sorted(members, key=lambda one: one.name)
        ]
    return "".join(parts)


def configuration_page() -> str:
    """docs/configuration.md."""
    rows = []
    for variable, path in variables().items():
        name = ".".join(path).replace("_", "-")
        what = describe(name).replace("|", "\\|")
        rows.append(f"| `{name}` | `{variable}` | {what} |\n")
    return CONFIGURATION + "".join(rows) + ALERTS + SINKS + STORAGE + CLIENT


def _groups() -> list[rule_file.Group]:
    """The rules of a daemon without a configuration."""
    return rule_file.groups(AlertsSection(), watching.families(), rule_file.Wanted())


def rules() -> str:
    """deploy/prometheus/trackside.rules.yml."""
    return rule_text.prometheus(_groups(), "trackside rules")


def manifest() -> str:
    """The same as a PrometheusRule, in deploy/kubernetes."""
    return rule_text.kubernetes(_groups(), "trackside rules --format kubernetes", {}, "")


def main() -> None:
    """Write them."""
    RULES.write_text(rules(), encoding="utf-8")
    MANIFEST.write_text(manifest(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (DOCS / "configuration.md").write_text(configuration_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
