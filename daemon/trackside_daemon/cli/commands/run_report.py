"""Output of `trackside show` and `trackside compare`: summaries of a run's series, and the lines to print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside_daemon.cli.output import elapsed, moment, table, width
from trackside_daemon.diagnosis.report.configuration import config, flat, setting
from trackside_daemon.model.text import cells, cut, duration, head, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOWER_IS_BETTER = frozenset(
    ("loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "mae", "mse", "rmse", "wer", "cer", "fid")
) | frozenset(("time", "duration", "seconds", "sec", "ms", "latency", "wait"))
HIGHER_IS_BETTER = frozenset(
    ("accuracy", "acc", "top1", "top5", "score", "scores", "f1", "bleu", "rouge", "auc", "precision", "recall", "iou")
) | frozenset(("dice", "psnr", "ssim", "reward", "throughput", "mfu"))

SPREAD = frozenset(("std", "stddev", "stdev", "var", "variance"))  # of a reward, say: neither end is the better one

KEY = 80  # maximum width of a key in a table
EVENTS = 10  # maximum number of events to show, the newest
LEAST = 0.0005  # minimum share of lost time to show
COLUMN = 10  # minimum width of a run's column in a comparison; further runs go to another table
LINES = 4  # maximum number of lines of a cell in a comparison


def best(key: str, low: Any, high: Any) -> Any:
    """Return the best value of a metric, by the words of its key; None if they do not show which is better.

    `LOWER_IS_BETTER` lists losses, errors, perplexities and times, and wins for keys such as ``error_score``.
    `HIGHER_IS_BETTER` lists accuracies, scores and rates. Measures of `SPREAD` have no best value.
    """
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+\d?|[A-Z]+\d?", key)}
    if words & SPREAD:
        return None
    if words & LOWER_IS_BETTER:
        return low
    return high if words & HIGHER_IS_BETTER else None


def metrics(run: Mapping[str, Any], rank: int | None = None) -> list[dict[str, Any]]:
    """Return a summary per key of a rank: ``final``, ``best``, ``mean``, ``min``, ``max``, ``step``, ``count``.

    Args:
        run: The run, with its metrics by attempt.
        rank: The rank; None for the lowest.
    """
    chosen = min((metric["rank"] for metric in run["metrics"]), default=0) if rank is None else rank
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for metric in run["metrics"]:
        if metric["rank"] == chosen:
            by_key.setdefault(metric["key"], []).append(metric)
    return [_summary(key, attempts) for key, attempts in by_key.items()]


def _summary(key: str, attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary over all attempts; the mean is weighted by their samples, without attempts that lack one."""
    last = max(attempts, key=lambda part: part["attempt"])
    low = min((part["min"] for part in attempts if part["min"] != "nan"), key=float, default="nan")
    high = max((part["max"] for part in attempts if part["max"] != "nan"), key=float, default="nan")
    weights = [(float(part["mean"]), part["count"]) for part in attempts if part["mean"] != "nan"]
    mean = sum(value * count for value, count in weights) / sum(count for _, count in weights) if weights else "nan"
    return {
        "key": key,
        "final": last["last"],
        "best": best(key, low, high),
        "mean": mean,
        "min": low,
        "max": high,
        "step": last["last_step"],
        "count": sum(part["count"] for part in attempts),
    }


def describe(
    run: Mapping[str, Any], events: Sequence[Mapping[str, Any]], rank: int | None, now: float
) -> Iterator[str]:
    """Yield the lines of `trackside show`; *run* contains its alerts, too."""
    yield from _facts(run, now)
    ranks = sorted({metric["rank"] for metric in run["metrics"]})
    columns = ("final", "best", "mean", "min", "max", "step", "count")
    rows = [
        [cut(shown(metric["key"]), KEY), *(number(metric[name]) for name in columns)] for metric in metrics(run, rank)
    ]
    nonfinite = [f"{metric['key']} {metric['nonfinite']}" for metric in run["metrics"] if metric.get("nonfinite")]
    if rows:
        which = f" of rank {ranks[0] if rank is None else rank} ({len(ranks)} ranks: --rank N shows another)"
        yield from ("", f"metrics{which if len(ranks) > 1 else ''}:")
        header = ["", "FINAL", "BEST", "MEAN", "MIN", "MAX", "STEP", "SAMPLES"]
        yield from table(header, rows, right="<>>>>>>>", flexible="~")
    yield from _listed("NaN or infinite", nonfinite)
    yield from _listed("attempts", _attempts(run, now) if len(run["attempt_list"]) > 1 else [])
    yield from _pairs("configuration", {key: setting(value) for key, value in config(run).items()})
    yield from _listed("alerts", [_alert(alert, run) for alert in run["alerts"]])
    newest = f"events (the newest {EVENTS} of {len(events)})" if len(events) > EVENTS else "events"
    yield from _listed(newest, [_event(event, run) for event in events[-EVENTS:]])


def compare(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of `trackside compare`: a column per run, in as many tables as the runs need."""
    commands = [shown(text) for text in _commands(runs)]
    differing = [("command", commands)] if len(set(commands)) > 1 else []
    sections = {
        "differences:": differing,
        "configuration differences:": list(_differing(runs)),
        "metrics:": list(_metric_rows(runs)),
    }
    rows = [row for section in sections.values() for row in section]
    headers = [[shown(run["name"]) for run in runs], [shown(run["id"]) for run in runs]]
    keys = max(cells(key) for key, _ in rows) + 2
    natural = max(
        COLUMN,
        *(cells(cell) for _, row in rows for cell in row),
        *(cells(cell) for header in headers for cell in header),
    )
    fits = max(1, (width() - min(keys, width() // 3)) // (COLUMN + 2))
    columns = min(fits, len(runs))
    keys = min(keys, max(width() // 3, width() - columns * (natural + 2)))
    column = max(COLUMN, min(natural, (width() - keys) // columns - 2))
    for first in range(0, len(runs), fits):
        part = slice(first, first + fits)
        if first:
            yield ""
        for header in headers:
            yield from _wrapped("", header[part], keys, column)
        for title, section in sections.items():
            if section:
                yield title
            for key, row in section:
                yield from _wrapped(f"  {key}", row[part], keys, column)


def _wrapped(key: str, row: Sequence[str], keys: int, column: int) -> Iterator[str]:
    """Yield the lines of a row: as many as its longest cell needs, up to `LINES`."""
    pieces = [_pieces(cell, column) for cell in row]
    for line in range(max(map(len, pieces))):
        texts = [piece[line] if line < len(piece) else "" for piece in pieces]
        name = cut(key, keys) if not line else ""
        parts = [" " * (column - cells(text)) + text for text in texts]
        yield "  ".join([name + " " * (keys - cells(name)), *parts]).rstrip()


def _pieces(text: str, column: int) -> list[str]:
    pieces: list[str] = []
    while cells(text) > column and len(pieces) < LINES - 1:
        piece = head(text, column)
        pieces.append(piece)
        text = text[len(piece) :]
    return [*pieces, cut(text, column)]


def differences(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[Any] | None]]:
    """Return the configuration entries that are not equal in all runs, as 1-tuples; None for a run that lacks one."""
    configs = [config(run) for run in runs]
    keys = dict.fromkeys(key for entries in configs for key in entries)
    rows = {key: [(entries[key],) if key in entries else None for entries in configs] for key in keys}
    return {key: row for key, row in rows.items() if any(setting(value) != setting(row[0]) for value in row)}


def compared(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the output of `trackside compare --json`; each list has one entry per run."""
    by_run = [{metric["key"]: metric for metric in metrics(run)} for run in runs]
    keys = dict.fromkeys(key for by_key in by_run for key in by_key)
    return {
        "runs": [{name: run[name] for name in ("id", "name", "state", "started", "ended")} for run in runs],
        "commands": _commands(runs),
        "configuration": {
            key: [None if value is None else value[0] for value in row] for key, row in differences(runs).items()
        },
        "metrics": {key: [by_key.get(key) for by_key in by_run] for key in keys},
    }


def _differing(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for key, row in differences(runs).items():
        yield shown(key), ["-" if value is None else setting(value[0]) for value in row]


def _metric_rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for key, row in compared(runs)["metrics"].items():
        for name in ("final", "best"):
            values = [None if metric is None else metric[name] for metric in row]
            if name == "final" or any(value is not None for value in values):
                yield f"{shown(key)} {name}", list(map(number, values))
    yield "last step", [number(run["step"]) for run in runs]
    yield "duration", [duration(None if run["ended"] is None else run["ended"] - run["started"]) for run in runs]


def _commands(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the command line of the last attempt of each run; empty for one that is not known."""
    return [" ".join((run["attempt_list"] or [{}])[-1].get("command") or ()) for run in runs]


def _facts(run: Mapping[str, Any], now: float) -> Iterator[str]:
    last: Mapping[str, Any] = run["attempt_list"][-1] if run["attempt_list"] else {}
    ended = run["ended"]
    state = run["state"] + (f" ({run['cause']})" if run["cause"] else "")
    attempts = len(run["attempt_list"])
    marks = [f"{attempts} attempts" if attempts > 1 else "", "pinned" if run["pinned"] else ""]
    marks.append("older samples trimmed" if run.get("trimmed") else "")
    commit = last.get("git_commit", "") + (" with changes" if last.get("git_dirty") else "")
    software = [last.get("platform"), last.get("python") and f"Python {last['python']}", last.get("framework")]
    facts = {
        "run": f"{run['name']}  {run['id']}" if run["name"] != run["id"] else run["id"],
        "user": run.get("user", ""),
        "state": ", ".join([state, *filter(None, marks)]),
        "started": moment(run["started"]),
        "ended": moment(ended) if ended is not None else "",
        "duration": duration(elapsed(run, now)),
        "step": f"{run['step']}" + (f" of {last['total_steps']}" if last.get("total_steps") else ""),
        "goodput": _goodput(run),
        "MFU": f"{100 * run['mfu']:.1f} %" if "mfu" in run else "",
        "tags": ", ".join(run["tags"]),
        "auto": f"{', '.join(last['auto'])}: found without a change of the script" if last.get("auto") else "",
        "reference": last.get("correlation", ""),
        "command": " ".join(last.get("command") or ()),
        "directory": last.get("directory", ""),
        "git": commit,
        "host": last.get("host", "") + (f", {last['world_size']} ranks" if (last.get("world_size") or 1) > 1 else ""),
        "software": ", ".join(filter(None, software)),
        "hardware": ", ".join(_parts(flat(last.get("hardware") or {}))),
    }
    for name, text in facts.items():
        if text and text != "None":
            yield f"{name:10}{shown(text)}"


def _goodput(run: Mapping[str, Any]) -> str:
    """Return the share of time spent training and the causes of lost time: ``91.2 % (data 3.1 %, restart 3.7 %)``."""
    if "goodput" not in run:
        return ""
    lost = sorted(run["lost"].items(), key=lambda item: -item[1])
    causes = ", ".join(f"{cause} {100 * share:.1f} %" for cause, share in lost if share >= LEAST)
    return f"{100 * run['goodput']:.1f} %" + (f" ({causes})" if causes else "")


def _parts(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Yield each known property, memory in GiB."""
    for key, value in hardware.items():
        if key.endswith("_bytes") and isinstance(value, int | float):
            yield f"{key.removesuffix('_bytes')} {value / 2**30:.3g} GiB"
        elif value not in ([], {}, "", None):
            yield f"{key} {setting(value)}"


def _attempts(run: Mapping[str, Any], now: float) -> Iterator[str]:
    for attempt in run["attempt_list"]:
        cause = f" ({attempt['cause']})" if attempt["cause"] else ""
        lasted = duration(elapsed(attempt, now))
        yield f"{attempt['attempt']}  {moment(attempt['started'])}  {lasted}  {attempt['state']}{cause}"


def _alert(alert: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    length = "firing" if alert["ended"] is None else f"for {duration(alert['ended'] - alert['started'])}"
    return f"{alert['severity']}  {alert['alert']}  {_after(alert['started'], run)}, {length}  {alert['summary']}"


def _event(event: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    step = "" if event["step"] is None else f"  step {event['step']}"
    fields = " ".join(f"{key}={setting(value)}" for key, value in flat(event["fields"]).items() if value != "")
    rank = "" if event["rank"] is None else f"  rank {event['rank']}"
    return f"{_after(event['time'], run)}{rank}{step}  {event['kind']}  {fields}"


def _after(moment_: float, run: Mapping[str, Any]) -> str:
    return f"after {duration(moment_ - run['started'])}"


def _listed(title: str, lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    texts = [f"  {shown(line).rstrip()}" for line in lines]
    if texts:
        yield from ("", f"{title}:", *texts)


def _pairs(title: str, pairs: Mapping[str, str]) -> Iterator[str]:
    if pairs:
        column = min(40, max(cells(shown(key)) for key in pairs))
        yield from ("", f"{title}:")
        for key, value in pairs.items():
            name = shown(key)
            yield f"  {name}{' ' * (column - cells(name))}  {value}"
