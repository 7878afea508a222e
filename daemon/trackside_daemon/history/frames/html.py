"""Tables for notebooks. All texts of runs are escaped: any training can choose them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from trackside_daemon.model.text import shown

SHOWN_KEYS = 50  # keys of a run that a notebook shows


def runs(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of runs, as a list of the API has them."""
    header = ("name", "id", "state", "started (UTC)", "step", "loss")
    rows = ((run["name"], run["id"], run["state"], _moment(run["started"]), run["step"], run["loss"]) for run in found)
    return _table(header, rows) if found else "<p>no runs yet</p>"


def run(about: Mapping[str, Any]) -> str:
    """Return the facts and the keys of a run, as the API has it."""
    facts = [about["state"], f"started {_moment(about['started'])} UTC", *about["tags"]]
    if about["ended"] is not None:
        facts.insert(2, f"ended {_moment(about['ended'])} UTC")
    title = f"<p><strong>{_text(about['name'])}</strong> ({_text(about['id'])}): {_text(', '.join(facts))}</p>"
    header = ("key", "rank", "attempt", "samples", "last", "minimum", "maximum")
    metrics = about["metrics"]
    rows = [tuple(one[name] for name in ("key", "rank", "attempt", "count", "last", "min", "max")) for one in metrics]
    more = about["series"] - len(metrics)
    return title + _table(header, rows) + (f"<p>and {more} more series</p>" if more > 0 else "")


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else escape(shown(str(value)))


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g}"
