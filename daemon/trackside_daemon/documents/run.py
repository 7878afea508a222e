"""A run: its facts, values, attempts, alerts and events."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

from trackside.wire import EXCEPTION
from trackside_daemon.documents.elements import Cell, Code, Document, Table, facts, listing
from trackside_daemon.model.configuration import config, flat, result, setting
from trackside_daemon.model.records import CONTINUITY, MODEL
from trackside_daemon.model.text import byte_size, duration, moment, number, percent
from trackside_daemon.model.time_ledger import ACCOUNTS

LOWER_IS_BETTER = frozenset(
    ("loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "mae", "mse", "rmse", "wer", "cer", "fid")
) | frozenset(("time", "duration", "seconds", "sec", "ms", "latency", "wait"))
HIGHER_IS_BETTER = frozenset(
    ("accuracy", "acc", "top1", "top5", "score", "scores", "f1", "bleu", "rouge", "auc", "precision", "recall", "iou")
) | frozenset(("dice", "psnr", "ssim", "reward", "throughput", "mfu"))

SPREAD = frozenset(("std", "stddev", "stdev", "var", "variance"))  # of a reward, say: neither end is the better one

LIVE = frozenset(("starting", "running", "stalled"))
EVENTS = 10  # maximum number of events to show, the newest
MIN_SHARE = 0.0005  # minimum share of the time to show


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
    """Return a summary per key of a rank: ``final``, ``best``, ``mean``, ``std``, ``min``, ``max``, ``step``, ``count``.

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
    """Return the summary over all attempts; mean and deviation are weighted by their finite samples, without attempts that lack one."""
    last = max(attempts, key=lambda part: part["attempt"])
    low = min((part["min"] for part in attempts if part["min"] != "nan"), key=float, default="nan")
    high = max((part["max"] for part in attempts if part["max"] != "nan"), key=float, default="nan")
    finite = [(part, part["count"] - part.get("nonfinite", 0)) for part in attempts if part["mean"] != "nan"]
    weights = [(float(part["mean"]), count, part.get("std")) for part, count in finite]
    samples = sum(count for _, count, _ in weights)
    mean: Any = sum(value * count for value, count, _ in weights) / samples if weights else "nan"
    squares = [
        count * (float(std) * float(std) + (value - mean) * (value - mean))
        for value, count, std in weights
        if std is not None  # as of an older history
    ]
    std = "nan" if not weights else sqrt(sum(squares) / samples) if len(squares) == len(weights) else None
    return {
        "key": key,
        "final": last["last"],
        "best": best(key, low, high),
        "mean": mean,
        "std": std,
        "min": low,
        "max": high,
        "step": last["last_step"],
        "count": sum(part["count"] for part in attempts),
    }


def document(run: Mapping[str, Any], events: Sequence[Mapping[str, Any]], rank: int | None, now: float) -> Document:
    """Return all about a run, with its alerts; *now* is in Unix seconds, and *rank* that of the values, None for the lowest."""
    ranks = sorted({metric["rank"] for metric in run["metrics"]})
    chosen = ranks[0] if rank is None and ranks else rank
    which = f" of rank {chosen} ({len(ranks)} ranks: --rank N shows another)" if len(ranks) > 1 else ""
    nonfinite = [
        f"{metric['key']} {metric['nonfinite']}" + (f" of rank {metric['rank']}" if len(ranks) > 1 else "")
        for metric in run["metrics"]
        if metric.get("nonfinite")
    ]
    model = run.get("model")
    own = {EXCEPTION, CONTINUITY, *({MODEL} if model else ())}
    others = [event for event in events if event["kind"] not in own]
    newest = f"events (the newest {EVENTS} of {len(others)})" if len(others) > EVENTS else "events"
    return Document(
        f"Run {run['name']}",
        [
            facts("", about(run, elapsed(run, now))),
            facts("results", results(run)),
            Table(f"metrics{which}", *values(run, rank)),
            listing("trend per 1,000 steps", trend_lines(run.get("trends", ()))),
            listing("NaN or infinite", nonfinite),
            _attempts(run, now),
            listing("resumes", [resume.get("text", "") for resume in run.get("resumes", ())]),
            *(_modules(model) if model else ()),
            facts("configuration", {key: setting(value) for key, value in config(run).items()}),
            Table("alerts", ALERTS, list(alerts(run, run["alerts"])), flexible="    ="),
            Table(newest, EVENT, list(happened(run, others[-EVENTS:])), right="<>><", flexible="    ="),
            *[_exception(event) for event in events if event["kind"] == EXCEPTION][-1:],
        ],
    )


def about(run: Mapping[str, Any], lasted: float | None) -> dict[str, Cell]:
    """Return the facts of a run; *lasted* is in seconds."""
    last: Mapping[str, Any] = run["attempt_list"][-1] if run["attempt_list"] else {}
    state = run["state"] + (f" ({run['cause']})" if run["cause"] else "")
    attempts = len(run["attempt_list"])
    marks = [f"{attempts} attempts" if attempts > 1 else "", "pinned" if run["pinned"] else ""]
    marks.append("older samples trimmed" if run.get("trimmed") else "")
    commit = last.get("git_commit", "") + (" with changes" if last.get("git_dirty") else "")
    software = [last.get("platform"), last.get("python") and f"Python {last['python']}", last.get("framework")]
    return {
        "run": f"{run['name']}  {run['id']}" if run["name"] != run["id"] else run["id"],
        "user": run.get("user", ""),
        "state": ", ".join([state, *filter(None, marks)]),
        "verdict": run.get("verdict", ""),
        "started": moment(run["started"], " %Z"),
        "ended": moment(run["ended"], " %Z") if run["ended"] is not None else "",
        "duration": duration(lasted),
        "step": number(run["step"]) + (f" of {number(last['total_steps'])}" if last.get("total_steps") else ""),
        "goodput": _goodput(run),
        "MFU": percent(run["mfu"]) if "mfu" in run else "",
        "tags": ", ".join(run["tags"]),
        "notes": " ".join((run.get("notes") or "").split()),
        "auto": f"{', '.join(last['auto'])}: found without a change of the script" if last.get("auto") else "",
        "reference": last.get("correlation") or "",
        "command": Code(" ".join(last.get("command") or ())),
        "directory": last.get("directory", ""),
        "git": commit,
        "host": last.get("host", "") + (f", {last['world_size']} ranks" if (last.get("world_size") or 1) > 1 else ""),
        "software": ", ".join(filter(None, software)),
        "hardware": ", ".join(_parts(flat(last.get("hardware") or {}))),
    }


def elapsed(run: Mapping[str, Any], now: float) -> float | None:
    """Return the seconds that a run or an attempt lasted; None if its end is unknown."""
    if run["ended"] is None and run["state"] not in LIVE:
        return None
    return float((now if run["ended"] is None else run["ended"]) - run["started"])


def results(run: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the results that a run states."""
    return {key: result(value) for key, value in run.get("summary", {}).items()}


def values(run: Mapping[str, Any], rank: int | None = None) -> tuple[Sequence[str], Sequence[Sequence[str]], str, str]:
    """Return the columns of a table with a row for each key of a rank, see `metrics`."""
    names = ("final", "best", "mean", "std", "min", "max", "step", "count")
    rows = [[metric["key"], *(number(metric[name]) for name in names)] for metric in metrics(run, rank)]
    return ("key", *names[:-1], "samples"), rows, "<>>>>>>>>", "~"


TRENDS = ("key", "per 1,000 steps", "95 % interval", "R²", "p-value", "last tenth", "95 % interval of it")


def trend_rows(trends: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield the rows of a table of trends, see `diagnosis.trends`."""
    for one in trends:
        p = "< 0.0001" if one["p"] < 0.0001 else number(one["p"])
        late = [number(one["late"]["slope"]), _interval(one["late"])] if one.get("late") else ["-", "-"]
        yield one["key"], number(one["slope"]), _interval(one), f"{one['r_squared']:.2f}", p, *late


def trend_lines(trends: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each trend."""
    for key, slope, interval, squared, p, late, late_interval in trend_rows(trends):
        last = f", last tenth {late} ({late_interval})" if late != "-" else ""
        yield f"{key} {slope} ({interval}), R² {squared}, p {p}{last}"


def _interval(trend: Mapping[str, Any]) -> str:
    return f"{number(trend['low'])} to {number(trend['high'])}"


ALERTS = ("severity", "alert", "after", "lasted", "summary")
EVENT = ("after", "rank", "step", "event", "fields")


def alerts(run: Mapping[str, Any], fired: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield the rows of a run's alerts."""
    for alert in fired:
        lasted = "fires" if alert["ended"] is None else duration(alert["ended"] - alert["started"])
        after = duration(alert["started"] - run["started"])
        yield alert["severity"], alert["alert"], after, lasted, alert["summary"]


def happened(run: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """Yield the rows of a run's events."""
    for event in events:
        after = duration(event["time"] - run["started"])
        yield after, number(event["rank"]), number(event["step"]), event["kind"], fields_of(event)


def fields_of(event: Mapping[str, Any]) -> str:
    """Return the fields of an event in one text."""
    return " ".join(f"{key}={setting(value)}" for key, value in flat(event["fields"]).items() if value != "")


def _attempts(run: Mapping[str, Any], now: float) -> Table:
    rows = [
        (
            str(attempt["attempt"]),
            moment(attempt["started"]),
            duration(elapsed(attempt, now)),
            attempt["state"] + (f" ({attempt['cause']})" if attempt["cause"] else ""),
        )
        for attempt in run["attempt_list"]
    ]
    return Table("attempts", ("attempt", "started", "took", "state"), rows if len(rows) > 1 else (), ">", "   =")


def _modules(model: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a model's size and its architecture."""
    trained = f", {model['trainable']:,} of them trained" if model["trainable"] != model["parameters"] else ""
    size = f"{model['class']}: {model['parameters']:,} parameters{trained}, {byte_size(model['bytes'])}"
    rows = [[module[0] or "-", module[1], f"{module[2]:,}", *module[3:5]] for module in model["modules"]]
    yield Table(f"model, {size}", ("module", "class", "parameters", "dtype", "device"), rows, "  >", "~~")


def _exception(event: Mapping[str, Any]) -> Table:
    lines = str(event["fields"].get("traceback", "")).splitlines()
    return listing(f"exception of rank {event['rank']}, innermost call last", map(Code, lines))


def _goodput(run: Mapping[str, Any]) -> str:
    """Return the share of useful compute and those of the other accounts: ``91.2 % (data wait 3.1 %, stalled 3.7 %)``."""
    if "goodput" not in run:
        return ""
    lost = sorted(run["lost"].items(), key=lambda item: -item[1])
    accounts = ", ".join(f"{ACCOUNTS.get(name, name)} {percent(share)}" for name, share in lost if share >= MIN_SHARE)
    return percent(run["goodput"]) + (f" ({accounts})" if accounts else "")


def _parts(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Yield each known property."""
    for key, value in hardware.items():
        if key.endswith("_bytes") and isinstance(value, int | float):
            yield f"{key.removesuffix('_bytes')} {byte_size(value)}"
        elif value not in ([], {}, "", None):
            yield f"{key} {', '.join(map(str, value)) if isinstance(value, list) else setting(value)}"
