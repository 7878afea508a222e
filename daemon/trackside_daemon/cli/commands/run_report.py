"""Output of `trackside show`: summaries of a run's series, and the lines to print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trackside.wire import EXCEPTION
from trackside_daemon.cli.output import elapsed, moment, table
from trackside_daemon.diagnosis.report.configuration import config, result, setting
from trackside_daemon.model.configuration import flat
from trackside_daemon.model.records import CONTINUITY, MODEL
from trackside_daemon.model.text import byte_size, cells, duration, number, percent, shown
from trackside_daemon.model.time_ledger import ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOWER_IS_BETTER = frozenset(
    ("loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "mae", "mse", "rmse", "wer", "cer", "fid")
) | frozenset(("time", "duration", "seconds", "sec", "ms", "latency", "wait"))
HIGHER_IS_BETTER = frozenset(
    ("accuracy", "acc", "top1", "top5", "score", "scores", "f1", "bleu", "rouge", "auc", "precision", "recall", "iou")
) | frozenset(("dice", "psnr", "ssim", "reward", "throughput", "mfu"))

SPREAD = frozenset(("std", "stddev", "stdev", "var", "variance"))  # of a reward, say: neither end is the better one

EVENTS = 10  # maximum number of events to show, the newest
LEAST = 0.0005  # minimum share of the time to show


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
    rows = [[shown(metric["key"]), *(number(metric[name]) for name in columns)] for metric in metrics(run, rank)]
    yield from _pairs("results", {key: result(value) for key, value in run.get("summary", {}).items()})
    nonfinite = [f"{metric['key']} {metric['nonfinite']}" for metric in run["metrics"] if metric.get("nonfinite")]
    if rows:
        which = f" of rank {ranks[0] if rank is None else rank} ({len(ranks)} ranks: --rank N shows another)"
        yield from ("", f"metrics{which if len(ranks) > 1 else ''}:")
        header = ["", "FINAL", "BEST", "MEAN", "MIN", "MAX", "STEP", "SAMPLES"]
        yield from table(header, rows, right="<>>>>>>>", flexible="~")
    yield from _listed("NaN or infinite", nonfinite)
    yield from _listed("attempts", _attempts(run, now) if len(run["attempt_list"]) > 1 else [])
    yield from _listed("resumes", [shown(resume.get("text", "")) for resume in run.get("resumes", ())])
    yield from _listed("model", list(_modules(model)) if (model := run.get("model")) else [])
    yield from _pairs("configuration", {key: setting(value) for key, value in config(run).items()})
    yield from _listed("alerts", [_alert(alert, run) for alert in run["alerts"]])
    raised = [event for event in events if event["kind"] == EXCEPTION]
    own = {EXCEPTION, CONTINUITY, *({MODEL} if model else ())}
    events = [event for event in events if event["kind"] not in own]
    newest = f"events (the newest {EVENTS} of {len(events)})" if len(events) > EVENTS else "events"
    yield from _listed(newest, [_event(event, run) for event in events[-EVENTS:]])
    for event in raised[-1:]:
        yield from ("", f"exception of rank {event['rank']}, innermost call last:")
        yield from (f"  {shown(line)}" for line in str(event["fields"].get("traceback", "")).splitlines())


def _modules(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a model's architecture."""
    trained = f", {model['trainable']:,} of them trained" if model["trainable"] != model["parameters"] else ""
    yield shown(f"{model['class']}: {model['parameters']:,} parameters{trained}, {byte_size(model['bytes'])}")
    rows = [
        [shown(module[0] or "-"), shown(module[1]), f"{module[2]:,}", *map(shown, module[3:5])]
        for module in model["modules"]
    ]
    yield from table(["MODULE", "CLASS", "PARAMETERS", "DTYPE", "DEVICE"], rows, right="  >", flexible="~~")


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
        "step": number(run["step"]) + (f" of {number(last['total_steps'])}" if last.get("total_steps") else ""),
        "goodput": _goodput(run),
        "MFU": percent(run["mfu"]) if "mfu" in run else "",
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
    """Return the share of useful compute and those of the other accounts: ``91.2 % (data wait 3.1 %, stalled 3.7 %)``."""
    if "goodput" not in run:
        return ""
    lost = sorted(run["lost"].items(), key=lambda item: -item[1])
    accounts = ", ".join(f"{ACCOUNTS.get(name, name)} {percent(share)}" for name, share in lost if share >= LEAST)
    return percent(run["goodput"]) + (f" ({accounts})" if accounts else "")


def _parts(hardware: Mapping[str, Any]) -> Iterator[str]:
    """Yield each known property, memory in GiB."""
    for key, value in hardware.items():
        if key.endswith("_bytes") and isinstance(value, int | float):
            yield f"{key.removesuffix('_bytes')} {byte_size(value)}"
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
