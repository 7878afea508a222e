"""Generator of the pages and Prometheus rules that come from the code: ``python docs/generate.py``."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections import Counter
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trackside
from trackside_daemon import __version__
from trackside_daemon.alerts.rules import rule_file, rule_text
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.cli.main import GROUPS as COMMANDS
from trackside_daemon.cli.main import load
from trackside_daemon.cli.options import written_argument
from trackside_daemon.config.loading import describe, setting_paths, variables
from trackside_daemon.documents.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, SPREAD
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.model.capture import FINAL
from trackside_daemon.model.families import (
    alerts,
    cgroup,
    daemon,
    derived,
    foreign,
    gpu,
    host,
    infiniband,
    nvml,
    process,
    ray,
    rl,
    training,
)
from trackside_daemon.model.families.catalogue import catalogue, metrics
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import ENDS
from trackside_daemon.model.troubles import GROUPS
from trackside_daemon.service.config import Config
from trackside_daemon.web.api.endpoints import ENDPOINTS
from trackside_daemon.web.api.openapi import document, read_answers
from trackside_daemon.web.api.overview.overview import MAX_ALERTS
from trackside_daemon.web.app import OTHER_REASONS, REASONS
from trackside_daemon.web.dashboard import STATIC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import ModuleType

    from trackside_daemon.model.metric import Metric
    from trackside_daemon.model.troubles import Trouble

DOCS = Path(__file__).parent
DEPLOY = DOCS.parent / "deploy"
RULES = DEPLOY / "prometheus" / "trackside.rules.yml"
MANIFEST = DEPLOY / "kubernetes" / "components" / "prometheus" / "prometheusrule.yaml"
METRICS = """# Metrics

Every family that the daemon exports, with its labels and meaning. Names that end in `_total` are counters, those in `_info` have facts as
labels, and others are gauges unless they say otherwise. The HELP lines of `/metrics` have the source of each value, too. All values are in
base units, which the name ends with; ratios are 0 to 1. A value that was not measured is absent: NaN never means "unknown". A NaN
loss is a real NaN.

The label `run` is the name that you chose; join further facts:

```
trackside_training_loss * on (run) group_left (git_commit) trackside_training_run_info
```

`trackside_series_rejected_total` counts the series over a limit, of which each [owner](other-machines.md#who-owns-a-run) gets the same share.
Of a run with more than 64 ranks (`limits.ranks`), the page has:

- the minimum, median, maximum and sum of each family in `trackside_training_rank_statistic`, and the ranks of the minimum and the
  maximum in `trackside_training_extreme_rank`
- the lowest rank's own series, and the states of ranks in a state that at most 16 ranks have
- histograms as their sums over all ranks, with an empty `rank`
- rank by rank: values of at most 7 of the ranks, and families with more than one label besides `run` and `rank`

The API, the history, the detectors and the daemon's rules see every rank. [How a run ends](run-states.md) has how long the series of an ended
run stay.

`/metrics?collect[]=NAME` and `?exclude[]=NAME` select families by the names of the sections below. `trackside` includes the
families of prometheus_client for the daemon's process (`process_*`, `python_*`). A section begins with the labels of all of its families but
those marked *only*. [`trackside benchmark`](benchmark.md) measures `trackside_model_*`, and [`run.observe`](layers.md) measures
`trackside_layer_*`. Some families need a GPU of the generation in parentheses or later.
"""
SOURCE = re.compile(
    r", from (?=nvml|/proc|/sys|statvfs|uname|adjtimex|time\(2\)|memory\.|cpu\.|pids\.|full of|some of|torch\.|the kubelet)"
    r"(?:(?! \(Hopper|, else 0|: [A-Z]|, which takes).)*|, sampled by the daemon's tick|, as trackside benchmark measured it"
    r"|, as last measured by run.observe on the rank|, from its metrics port|, from the dashboard| and later(?=\))"
)
"""What a line leaves to HELP."""
CONFIGURATION = """# Configuration

The daemon works without any configuration. A setting has the same name everywhere; `sample.interval` is

- `--sample.interval=2s` on the command line, which comes first,
- `TRACKSIDE_SAMPLE__INTERVAL=2s` in the environment: in capitals, with two underscores for each dot, one for each hyphen, and commas between
  the items of a list,
- `sample: {interval: 2s}` in the YAML file that `--config.file` names. `trackside check-config FILE` reports its errors.

Durations are `500ms`, `2s`, `1h30m` or a number of seconds. Sizes are `10GiB`, `500MB` or a number of bytes.
`trackside daemon --help` lists the flags that people set most often, and `--help-all` all. Below, the default is in brackets; without one a
setting is empty or off.

The daemon reads the file again on SIGHUP or, if you set `web.enable-lifecycle`, on `POST /-/reload`. `sample.interval`,
`run.linger`, `storage.interval`, `storage.retention.*`, `alerts.off`, `alerts.sinks.*` and `log.*` change at once; all other
settings need a restart. The daemon reads the file of `web.config.file` again whenever it changes: [TLS and passwords](web.md).

<a id="custom-rules"></a><a id="notifications"></a>See also [rules that you write](rules.md), [notifications](notifications.md) and
[what the history deletes](history.md#where-and-how-much).
"""
CLIENT = """
## Variables of the client

- `TRACKSIDE_RUN_ID`: the run's id; the same on all ranks
- `TRACKSIDE_RUN_NAME`: the run's name; by default the script's name
- `TRACKSIDE_TAGS`: tags of the run, separated by commas
- `TRACKSIDE_ENDPOINT`: where the daemon accepts pushes, `ipc://PATH` or `tcp://HOST:PORT`; with `ipc://` the commands query only that daemon
- `TRACKSIDE_KEY_FILE`: the key for a daemon on another machine, [from `trackside keys`](other-machines.md)
- `TRACKSIDE_FLUSH_TIMEOUT`: how many seconds the end of a run may wait for its last acknowledgement; default 2
- `TRACKSIDE_RANKS`: `zero` lets only rank 0 push; default `all`
- `TRACKSIDE_CODE`: `0`: [the code of a run](history.md#the-code-of-a-run) is not stored
- `TRACKSIDE_DISABLED`: `1` turns the client off
- `TRACKSIDE_LAUNCH`: set by [`trackside run`](run.md) to identify the runs of its command
- `POD_NAME`, `POD_NAMESPACE`, `CONTAINER_NAME`: where in Kubernetes the training runs, [set by its manifest](host.md#in-containers-and-kubernetes)

Our commands read `TRACKSIDE_WEB__CREDENTIALS_FILE`, the file of [`--web.credentials-file`](web.md#our-commands).

Without an endpoint the client searches for `push.sock` in `$XDG_RUNTIME_DIR/trackside`, or, if that is not set or not writable, in
`/run/user/UID/trackside` and `/tmp/trackside-UID`; then in `/run/trackside`, the only one that may be
[another user's](other-machines.md#other-users-of-this-machine). The daemon binds in the first that it may use. Commands find it by
`push.address` and `push.token` next to the socket. Files that another user could have made or replaced are ignored, and
`trackside doctor` names them; it shows, as does the client at log level INFO, which daemon was found and why.
"""


HTTP_API = """# HTTP API

The daemon serves this API below `/api/v1`. Every request needs the token of the daemon, or the credentials of the
[web configuration](web.md). `trackside token` prints the token, which lasts over restarts until `trackside token --rotate`.

```sh
curl -H "Authorization: Bearer $(trackside token)" http://127.0.0.1:21790/api/v1/processes
```

The [role](web.md#roles) `read` may do every GET, and `write` the rest, where nothing else is stated. `trackside token --role read` prints a
token that can only read.

`/api/v1/openapi.json` is the whole reference, with the types of all answers; generators make typed clients of it. [Stable](stability.md) are
its paths, parameters, statuses and fields; answers may get more fields. This page is made from it, with answers from a test: their
fields that are not empty, and `…` for what is long. A body is what `curl -d` sends.

- answers: JSON unless stated otherwise, whatever `Accept` says; compressed with `Accept-Encoding: gzip`
- NaN and infinities: the texts `"nan"`, `"inf"` and `"-inf"`
- times: Unix seconds; parameters may also be `2026-11-01`, `2026-11-01T08:00:00Z`, or `7d` for seven days ago
- errors: `{"error": {"reason": "…", "message": "…"}}` with a status of 400 or higher. The reason is REASONS
- unknown names: a parameter that an endpoint does not have is 400; a run, a key or a file that there is not is 404
- files: images and captures never change: send their `ETag` as `If-None-Match`, and the answer is 304
- other origins: pages of other origins may read, with the token, if [`web.cors-origins`](configuration.md) names them; none may change anything
- limits: 2 answers from the history at a time, and 100 streams; the [web configuration](web.md) limits requests by address

Parameters of several endpoints:

"""
SHORT = 30  # characters of a value in an example
SHORT_ANSWER = 90  # characters of an answer in one line
_SILENCE = {
    "id": "c76b66bd",
    "labels": {"alert": "LossSpike", "run": "debug-*"},
    "started": 1700000000.0,
    "until": 1700007200.0,
    "comment": "",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "pin_run": {"pinned": True},
    "annotate_run": {"run": "gpt-small", "text": "lr halved", "step": 1200, "time": 1700000000.0},
    "request_layers": {"steps": 100, "ranks": [0, 1]},
    "get_stacks": {
        "ranks": [{"rank": 0, "seconds": 0.004, "threads": {"MainThread": ["train.py:12 in <module>"]}}],
        "silent": [],
    },
    "get_ping": {"ranks": [{"rank": 0, "seconds": 0.002}], "silent": [1]},
    "audit_checkpoints": {"run": "gpt-small"},
    "delete_run": {"deleted": "gpt-small"},
    "test_alert": {"alert": "TestAlert", "test": "8f2c01aa", "run": "", "severity": "warning", "started": 1700000000.0},
    "add_silence": {"silence": _SILENCE, "firing": [], "kept": True, "why": ""},
    "end_silence": {"silence": _SILENCE, "kept": True, "why": ""},
    "import_run": {"run": "imported-1", "samples": 12000, "notes": []},
    "pause_gpu": {"released": True, "paused_until": 1700000600.0, "holders": []},
    "resume_gpu": {"resumed": True},
    "get_fleet": {
        "runs": [
            {
                "id": "gpt-small",
                "name": "gpt-small",
                "state": "running",
                "cause": "",
                "started": 1700000000.0,
                "ended": None,
                "attempt": 0,
                "step": 1200,
                "loss": 2.31,
                "tags": [],
                "pinned": False,
                "user": "ann",
                "host": "node-1",
                "summary": {},
                "notes": "",
                "config": {},
                "url": "http://node-1:21790/runs/gpt-small",
            }
        ],
        "problems": [],
    },
    "get_processes": {
        "processes": [
            {
                "pid": 4711,
                "parent": 1,
                "role": "rank",
                "comm": "python",
                "run": "gpt-small",
                "user": "ann",
                "command": "python train.py",
                "gpus": [],
                "started": 1700000000.7,
            }
        ]
    },
    "get_batches": {
        "run": "gpt-small",
        "batches": [{"step": 200, "rank": 0, "alert": 7, "samples": [17, 4], "count": 2}],
    },
    "get_code": {"diff": ["--- a/train.py"]},
    "get_console": {"bytes": 16, "lines": [[1, "loss 2.31"]], "total": 2, "more": False},
    "get_machine": {"families": ["trackside_host_memory_available_bytes"]},
    "end_process": {"pid": 4711, "signal": "SIGTERM"},
    "get_status": {"version": __version__, "gpus": [], "nvml": {"error": ""}},
    "rotate_token": {"token": "…"},
    "send_message": {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}},
    "get_silences": {"silences": [_SILENCE]},
}
"""Answers that no test records, by operation; tests/documentation holds them to their types."""
RECORDED = DOCS.parent / "tests" / "behavior" / "recorded" / "api"

CLIENT_PAGE = """# Python client

The package `trackside` is everything that the training code imports. Its functions act on the default run, which was opened last; the first
call opens one: """
CLASSES = ("Run", "Checkpoints", "LogFilter")

COMMANDS_PAGE = """# Commands

`trackside COMMAND --help` prints the same. Commands that read the history ask the running daemon, or read the file if there is
none. `--web.credentials-file FILE`, before or after any command, names the
[credentials of a daemon that requires them](web.md#our-commands). The exit status is 0, 1 for what a command could not do, and 2
for a wrong command line or configuration. Defaults are in brackets; options that are [settings](configuration.md) are described there.
Arguments and options of several commands:

"""
MANY = 3  # commands that have an option, from which on it is described once
FEW = 12  # settings that a command lists as options


def sections() -> dict[str, list[Metric]]:
    """Return every exported family, grouped by the source that it comes from."""
    checkpoints = list(training.AUDITED)
    of_ranks = [gpu.RANK_INFO, training.PEAK_FLOPS, process.PROCESS_INFO]
    return {
        "training": [
            *_without([*_all(training), *_all(rl)], [training.PEAK_FLOPS, training.SERIES_REJECTED, *checkpoints]),
            derived.RANK_STATISTIC,
            derived.EXTREME_RANK,
        ],
        "alerts": _starting(alerts, "trackside_alert"),
        "captures": _starting(daemon, "trackside_capture"),
        "checkpoints": checkpoints,
        "bridges": _starting(daemon, "trackside_bridge"),
        "notifications": _starting(alerts, "trackside_notifications"),
        "gpu": [*_without(_all(gpu), [gpu.RANK_INFO, gpu.POD_INFO]), nvml.DRIVER_INFO],
        "nvml": _without(_all(nvml), [nvml.DRIVER_INFO]),
        "ranks": of_ranks,
        "cpu": [host.CPU_SECONDS, host.CPU_CORE_SECONDS, host.CPUS, *host.STAT_NUMBERS.values()],
        "load": [*host.LOADS, host.HUNG_TASKS],
        "memory": [*host.MEMINFO.values(), host.SWAP_USED],
        "vmstat": [*host.VMSTAT.values()],
        **{name: _starting(host, f"trackside_host_{name}") for name in ("pressure", "disk", "filesystem", "network")},
        "infiniband": _all(infiniband),
        "cgroup": _all(cgroup),
        "process": _without(_all(process), of_ranks),
        "time": [host.TIME, host.BOOT_TIME, host.TIME_OFFSET, host.TIME_SYNCHRONIZED, host.UNAME],
        "thermal": [host.CPU_TEMPERATURE, host.CPU_ENERGY],
        "kubelet": [gpu.POD_INFO],
        "ray": _all(ray),
        "textfile": _all(foreign),
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


def _all(module: ModuleType) -> list[Metric]:
    return [*dict.fromkeys(metrics(vars(module)))]


def _without(found: Sequence[Metric], others: Collection[Metric]) -> list[Metric]:
    return [one for one in found if one not in others]


def _starting(module: ModuleType, begin: str) -> list[Metric]:
    return [one for one in _all(module) if one.name.startswith(begin)]


def metrics_page() -> str:
    """Return the text of docs/metrics.md."""
    parts = [METRICS]
    for name, members in sections().items():
        counts = Counter(label for one in members for label in one.labels)
        usual = [label for label, count in counts.items() if count > len(members) / 2]
        named = ", ".join(f"`{label}`" for label in usual)
        parts.append(f"\n## {name}\n\n" + (f"Labels: {named}.\n\n" if usual else ""))
        parts += [_family(one, usual) for one in sorted(members, key=lambda one: one.name)]
    return "".join(parts)


def _family(one: Metric, usual: Sequence[str]) -> str:
    """Return the line of a family, with the labels that it has besides the usual ones of its section."""
    whole = set(usual) <= set(one.labels)
    labels = [label for label in one.labels if label not in usual] if whole else list(one.labels)
    more = f"{{{','.join(labels)}}}" if labels else ""
    kind = "" if one.kind == "gauge" or one.name.endswith(("_total", "_info")) else f", {one.kind}"
    only = "" if whole else ", *only*" if labels else ", *no labels*"
    return f"- `{one.name}{more}`{kind}{only}: {SOURCE.sub('', re.split(r'[;.] ', one.help)[0].rstrip('.'))}\n"


def configuration_page() -> str:
    """Return the text of docs/configuration.md."""
    groups: dict[str, dict[str, list[str]]] = {}
    for path in variables(Config).values():
        name = ".".join(path).replace("_", "-")
        text = re.sub(r"\[default: (.*)\]$", r"[\1]", describe(Config, name))
        groups.setdefault(path[0], {}).setdefault(text, []).append(name)
    parts = [CONFIGURATION]
    for name, rows in groups.items():
        parts += [
            f"\n## {name}\n\n".replace("_", "-"),
            *(f"- {_together(names)}: {text}\n" for text, names in rows.items()),
        ]
    return "".join(parts) + CLIENT


def _together(names: Sequence[str]) -> str:
    """Return names that have one description, such as ``collector.{cpu,load}.enabled``."""
    begin, end = names[0].split(".")[0], names[0].rpartition(".")[2]
    inner = [one.removeprefix(f"{begin}.").removesuffix(f".{end}") for one in names]
    if len(names) == 1 or any(f"{begin}.{part}.{end}" != one for part, one in zip(inner, names, strict=True)):
        return ", ".join(f"`{one}`" for one in names)
    return f"`{begin}.{{{','.join(inner)}}}.{end}`"


def commands_page() -> str:
    """Return the text of docs/commands.md, made from the commands' own help."""
    parts = [COMMANDS_PAGE, *_shared()]
    for group, commands in COMMANDS.items():
        parts.append(f"\n## {group}\n")
        parts += [_command(name, load(name), 3) for name in commands]
    return "".join(parts)


@cache
def _shared() -> list[str]:
    """Return the lines of the options that many commands have."""
    commands = [load(name) for group in COMMANDS.values() for name in group]
    counts = Counter(_line(one) for command in commands for one in command.params if not one.hidden)
    return sorted(line for line, count in counts.items() if count >= MANY)


def _line(parameter: Any) -> str:
    return f"- `{_spelling(parameter)}`: {_meaning(parameter)}\n"


def _command(name: str, command: Any, level: int) -> str:
    """Return the section of a command: its usage, its sentence, its options and its examples; then those of its own commands."""
    members = getattr(command, "commands", {})
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([f"trackside {name}", *map(written_argument, arguments), *(["COMMAND"] if members else [])])
    paths = set(map("__".join, setting_paths(Config)))
    settings = [one for one in command.params if one.name in paths and "__" in one.name]
    shown = [one for one in command.params if one not in settings and not one.hidden]
    rows = [line for one in shown if (line := _line(one)) not in _shared()]
    shown_usage = f"`{usage}`\n\n" if arguments or members else ""
    parts = [f"\n{'#' * level} {name}\n\n{shown_usage}{_paragraphs(command.help)}\n"]
    if rows:
        parts += ["\n", *rows]
    usual = [one for one in shown if _line(one) in _shared() and one.param_type_name == "option"]
    if also := ", ".join(f"`{one.opts[0]}`" for one in usual):
        parts.append(f"\nAlso {also}.\n")
    if settings:
        few = len(settings) <= FEW
        names = [f"`{one.opts[0]}`" if few else f"`{one.opts[0][2:].partition('.')[0]}`" for one in settings]
        text = f"{'Settings' if few else 'Many settings of'} {', '.join(dict.fromkeys(names))} are options, too."
        parts.append(f"\n{_filled(text)}\n")
    for example in re.findall("(?m)^Example: (.*)$", command.epilog or ""):
        parts += [f"\nExample: `{example}`\n"] if re.search(r" -|['\">]", example) else []
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


def _spelling(parameter: Any) -> str:
    """Return how a parameter is written: ``RUN``, ``--limit N``, ``--clear / --no-clear``."""
    if parameter.param_type_name == "argument":
        return re.sub(r"^\[?RUN\]?(\.\.\.)?$", "RUN", written_argument(parameter)).replace("|", "\\|")
    names = ", ".join(parameter.opts) + "".join(f" / {one}" for one in parameter.secondary_opts)
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return f"{names}{value}".replace("|", "\\|")


def _meaning(parameter: Any) -> str:
    """Return the help of a parameter in one line, with its default."""
    text, default = " ".join((parameter.help or "").split()), parameter.default
    if isinstance(parameter.show_default, str):
        text += f" [{parameter.show_default}]"
    elif parameter.show_default is not False and default not in (None, False, "", (), []) and not callable(default):
        text += f" [{'on' if default is True else getattr(default, 'value', default)}]"
    return text.replace("[default: ", "[").replace("|", "\\|").replace("<", "&lt;")


def client_page() -> str:
    """Return the text of docs/client.md, made from the docstrings of the client."""
    names = [name for name in trackside.__all__ if name not in CLASSES]
    parts = [CLIENT_PAGE]
    parts.append(", ".join(f"[`{name}`](#{_place(name)})" for name in names) + ".\n")
    own = [name for name in names if _place(name) == name]
    parts += [_documented(name, getattr(trackside, name)) for name in own]
    for name in CLASSES:
        parts += _class(name, own if name == "Run" else ())
    return "".join(parts)


def python_page(page: str) -> str:
    """Return docs/python.md with its reference, made from the docstrings; what is before it stays."""
    begin, heading, _ = page.partition("## Reference\n")
    classes = [part for name in ("History", "RunHistory", "Series", "Media") for part in _class(name)]
    return "".join([begin, heading, _documented("open", trackside.open), *classes])


def _class(name: str, functions: Collection[str] = ()) -> Iterator[str]:
    """Yield the sections of a class and of its methods, without those that are functions of the package."""
    kind = getattr(trackside, name)
    yield _documented(name, kind)
    members = {one: member for one, member in vars(kind).items() if not one.startswith("_") and one not in functions}
    properties = [
        (one, inspect.getdoc(member) or "") for one, member in members.items() if isinstance(member, property)
    ]
    yield "\n" if properties else ""
    yield from (
        f"- `{name}.{one}`: {' '.join(_prose(text).split())}\n" for one, text in properties if text != "See the class."
    )
    yield from (_documented(f"{name}.{one}", member) for one, member in members.items() if inspect.isfunction(member))


def _place(name: str) -> str:
    """Return the heading's anchor of a function: that of a method if it says that it does the same."""
    same = re.search(r"\bas `Run\.(\w+)`", inspect.getdoc(getattr(trackside, name)) or "")
    return f"run{same[1]}" if same else name


def _documented(name: str, what: Any) -> str:
    """Return the section of a function or class: its signature and its docstring, whose lists have a bullet an entry."""
    text = _prose(inspect.getdoc(what) or "")
    if what in (trackside.Run, trackside.RunHistory, trackside.Series, trackside.Media):  # functions make them
        return f"\n### {name}\n\n{text}"
    return f"\n### {name}\n\n`{name}{_signature(what)}`\n\n{text}"


def _signature(what: Any) -> str:
    """Return the signature of a function or class as its source has it, which is the same in every Python."""
    function = vars(what)["__init__"] if isinstance(what, type) and "__init__" in vars(what) else what
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    if isinstance(node, ast.ClassDef):
        return "()"
    for one in ast.walk(node.args):  # the text has the types in words
        if isinstance(one, ast.arg):
            one.annotation = None
    names = (*node.args.posonlyargs, *node.args.args)
    shown = re.sub(r"^self(, )?", "", ast.unparse(node.args)) if names else ast.unparse(node.args)
    return f"({shown})" + (
        "" if isinstance(what, type) or ast.unparse(node.returns) == "None" else f" -> {ast.unparse(node.returns)}"
    )


def _prose(docstring: str) -> str:
    """Return a docstring of Google's style as Markdown."""
    lines: list[str] = []
    for line in docstring.split("\n"):
        if line == "Args:":
            continue
        if line in {"Attributes:", "Returns:", "Raises:", "Yields:"}:
            lines += [f"**{line[:-1]}**", ""]
        elif found := re.match(r"    (\*{0,2}\w+): (.*)", line):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
    return re.sub(r"``(.+?)``", r"`\1`", "\n".join(lines)).rstrip() + "\n"


def http_api_page() -> str:
    """Return the text of docs/http-api.md, made from the daemon's OpenAPI document and recorded answers."""
    found, answers = document(__version__), read_answers()["answers"]
    reasons = ", ".join(f"`{reason}`" for reason in sorted({*REASONS.values(), *OTHER_REASONS}))
    operations = [
        (f"{method.upper()} {path}", operation)
        for group in found["tags"]
        for path, operations in found["paths"].items()
        for method, operation in operations.items()
        if operation["tags"] == [group["name"]]
    ]
    uses: dict[str, list[str]] = {}
    for _, operation in operations:
        for one in operation["parameters"]:
            uses.setdefault(_words(one), []).append(_kind(one))
    shared = {words: kinds[0] if len(set(kinds)) == 1 else "" for words, kinds in uses.items() if len(kinds) > 1}
    parts = [HTTP_API.replace("REASONS", reasons), *starmap(_row, shared.items())]
    group, shown = "", dict[str, str]()
    for name, operation in operations:
        kind = _notation(answers.get(operation["operationId"], ""))
        if operation["operationId"] in EXAMPLES or name in _examples():
            shown.setdefault(kind, name)
    for name, operation in operations:
        if group != (group := operation["tags"][0]):
            parts.append(f"\n## {group}\n")
        parts += [f"\n### {name}\n\n", *_operation(name, operation, answers, shared, shown)]
    return "".join(parts)


def _words(parameter: Mapping[str, Any]) -> str:
    return f"`{parameter['name']}`: {parameter['description']}"


def _row(words: str, kind: str) -> str:
    return f"- {words.replace(':', f'{kind}:', 1)}\n"


def _kind(parameter: Mapping[str, Any]) -> str:
    """Return the type of a parameter, whether it has to be given, and its default."""
    schema = parameter["schema"]
    kind = "time" if "anyOf" in schema else "text" if schema["type"] == "string" else schema["type"]
    if kind == "array":
        kind = "repeatable"
    parts = [kind] if kind != "text" and parameter["in"] == "query" else []
    parts += ["required"] if parameter["required"] and parameter["in"] == "query" else []
    if kind != "boolean" and schema.get("default"):
        parts += [f"default {schema['default']}", *([f"at most {schema['maximum']}"] if "maximum" in schema else [])]
    return f" ({', '.join(parts)})" if parts else ""


def _operation(
    name: str,
    operation: Mapping[str, Any],
    answers: Mapping[str, Any],
    shared: Mapping[str, str],
    shown: dict[str, str],
) -> Iterator[str]:
    """Yield the section of an operation; *shown* has the operations by their texts and types."""
    method, path = name.split()
    role = operation["x-role"]
    yield operation["summary"]
    yield "\n" if role == ("read" if method == "GET" else "write") else f" Role: `{role}`.\n"
    if description := operation.get("description"):
        as_of = shown.setdefault(description, name)
        yield f"\n{description if as_of == name else f'As of `{as_of}`.'}\n"
    parameters = operation["parameters"]
    if own := [one for one in parameters if _words(one) not in shared]:
        yield from ("\n", *(_row(_words(one), _kind(one)) for one in own))
    usual = [one for one in parameters if _words(one) in shared and one["in"] == "query"]
    if also := ", ".join(f"`{one['name']}`{'' if shared[_words(one)] else _kind(one)}" for one in usual):
        yield f"\nAlso {also}.\n"
    asked, answer = _examples().get(name, (path, None))
    if query := asked.partition("?")[2]:
        yield f"\nExample: `?{query}`\n"
    if body := operation.get("requestBody", {}).get("description", ""):
        yield f"\nBody: {f'`{body}`' if body.startswith('{') else 'the file, by `--data-binary @run.csv`'}\n"
    answer = EXAMPLES.get(operation["operationId"], answer)
    kind = _notation(answers.get(operation["operationId"], ""))
    lines = _shortened(answer) if shown.get(kind) == name else ""
    yield f"\nAnswer: {lines}\n" if lines else ""
    if kind in shown and not lines:
        yield f"\nThe answer is as of `{shown[kind]}`.\n"


def _notation(of: Any) -> str:
    """Return a type as answers.yaml writes it, in one line."""
    if isinstance(of, list):
        return f"[{_notation(of[0])}]"
    if isinstance(of, dict):
        return "{" + ", ".join(f"{name}: {_notation(one)}" for name, one in of.items()) + "}"
    return str(of)


@cache
def _examples() -> dict[str, tuple[str, Any]]:
    """Return by method and path a recorded question and its answer, the first with something in it."""
    patterns = [(one, re.compile(re.sub(r"{\w+}", "[^/?]+", one.path))) for one in ENDPOINTS]
    found: dict[str, tuple[str, Any]] = {}
    for file in sorted(RECORDED.rglob("*.json")):
        if file.stem in {"refused", "message", "openapi"}:
            continue
        for question, answer in json.loads(file.read_text(encoding="utf-8")).items():
            method, asked = question.split(" ")[:2]
            one = next(one for one, pattern in patterns if pattern.fullmatch(asked.partition("?")[0]))
            if isinstance(answer, dict) and "status" not in answer and any(answer.values()):
                if f"{method} {one.path}" in found:
                    continue
                found[f"{method} {one.path}"] = asked, answer
    return found


def _shortened(answer: Mapping[str, Any]) -> str:
    """Return an answer without empty fields; of a long one the names of the fields."""
    some = {name: value for name, value in answer.items() if value not in (None, "", [], {})} or answer
    fields = [f'"{name}": {_cut(value)}' for name, value in some.items()]
    whole = f"`{{{', '.join(fields)}}}`"
    return whole if len(whole) <= SHORT_ANSWER else ", ".join(f"`{name}`" for name in some)


def _cut(value: Any) -> str:
    if len(text := json.dumps(value, ensure_ascii=False)) <= SHORT:
        return text
    return f"{text[0]}…{text[-1]}" if isinstance(value, (dict, list)) else f"{text[:SHORT]}…"


def alerts_page(page: str) -> str:
    """Return docs/alerts.md with the list and the sections of the alerts from the catalogue; the rest of *page* stays."""
    names, sections = [], []
    for group, (intro, troubles) in GROUPS.items():
        names.append(f"- {group}: {', '.join(f'[{one.name}](#{one.name.lower()})' for one in troubles)}\n")
        sections += [f"## {group}\n", *([f"{intro}\n"] if intro else []), *map(_alert, troubles)]
    for name, text in (("list", "".join(names)), ("sections", "\n".join(sections))):
        begin, end = f"<!-- {name} of model/troubles.md -->\n", f"\n<!-- end of the {name} -->"
        page = page.partition(begin)[0] + begin + "\n" + text + end + page.partition(end)[2]
    return page


def _alert(trouble: Trouble) -> str:
    """Return the section of an alert: severity, fixed summary and meaning, usual next steps, and what else there is."""
    more = trouble.more if "\n- " in trouble.more else trouble.more.removeprefix("- ").replace("\n  ", "\n")
    shown = {"": trouble.steps[""]} if "" in trouble.steps else trouble.steps
    steps = [f"**Do{f' ({case})' if case else ''}:** {text}" for case, text in shown.items()]
    parts = [
        f"### {trouble.name}",
        f"**{trouble.severity}:** {trouble.summary} {trouble.meaning}",
        *steps,
        more,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


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
    (DOCS / "client.md").write_text(client_page(), encoding="utf-8")
    python_md = DOCS / "python.md"
    python_md.write_text(python_page(python_md.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
