"""Read the live runs of all machines from a server that answers Prometheus' queries: Prometheus, Mimir, Thanos, VictoriaMetrics."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import isfinite, nan
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgspec

from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDS

ANSWER_BYTES = 16 * 2**20  # of each of the queries, which are asked at once
Labels: TypeAlias = dict[str, str]
Key: TypeAlias = frozenset[tuple[str, str]]
"""The labels of a target, such as instance and cluster, and the name of a run."""
_OF_SERIES = {"__name__", "rank", "state", "key", *f.RUN_INFO.labels} - {"run"}


class _Sample(msgspec.Struct):
    metric: Labels
    value: tuple[float, str]


class _Vector(msgspec.Struct, rename="camel"):
    result: list[_Sample] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Vector = msgspec.field(default_factory=_Vector)
    error: str = ""


QUERIES = {
    "info": f.RUN_INFO.name,
    "state": f"{f.STATE.name} == 1",
    "step": f"max without (rank) ({f.STEP.name})",
    "started": f"min without (rank) ({f.STARTED.name})",
    "ended": f"max without (rank) ({f.ENDED_AT.name})",
    # Rank 0 is on one of a run's machines, and the others have some higher rank as their lowest.
    **{
        name: f'{family}{{rank="0",{keys}}} or ignoring (rank) {family}{{{keys}}}'
        for name, family, keys in (
            ("loss", f.KNOWN["loss"].name, ""),
            ("other losses", f.VALUE.name, f'key=~"{"|".join(LOSSES[1:])}"'),
        )
    },
}


def live_runs(
    url: str, headers: Mapping[str, str], context: ssl.SSLContext, page: Callable[[Labels], str]
) -> list[dict[str, Any]]:
    """Return the runs that a server knows now, newest first, one row for each run on all its machines.

    Args:
        url: Address of the server, to which ``/api/v1/query`` is appended.
        headers: Headers of the requests.
        context: Trusted certificates.
        page: Returns the address of a run's page, by the labels of its info.

    Raises:
        SendError: The server does not answer, or not with what was asked for.
    """

    def ask(query: str) -> list[_Sample]:
        address = f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
        body = http_request.request("GET", address, None, headers, context, longest=ANSWER_BYTES)
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.MsgspecError as error:
            raise SendError(f"its answer to {query} is none of Prometheus: {error}", "later") from None
        if answer.status != "success":
            raise SendError(f"it refuses {query}: {answer.error}", "later")
        return answer.data.result

    with ThreadPoolExecutor(len(QUERIES), "trackside-fleet") as threads:
        found = dict(zip(QUERIES, threads.map(ask, QUERIES.values()), strict=True))
    losses: dict[Key, tuple[int, float]] = {}
    places = {key: place for place, key in enumerate(LOSSES)}
    others = sorted(found["other losses"], key=lambda one: (_rank(one), places.get(one.metric.get("key", ""), 0)))
    for one in (*sorted(found["loss"], key=_rank), *others):
        losses.setdefault(_key(one), (_rank(one), _number(one.value[1])))
    values: dict[str, dict[Key, Any]] = {
        **{name: {_key(one): _finite(one.value[1]) for one in found[name]} for name in ("step", "started", "ended")},
        "state": {_key(one): one.metric.get("state", "") for one in found["state"]},
        "loss": losses,
    }
    rows = (
        _row(one.metric, {name: known.get(_key(one)) for name, known in values.items()}, page) for one in found["info"]
    )
    return sorted(_merged(rows), key=lambda row: -(row["started"] or 0.0))


def _key(one: _Sample) -> Key:
    labels = one.metric.items()
    return frozenset(item for item in labels if item[0] not in _OF_SERIES and not item[0].startswith("exported_"))


def _rank(one: _Sample) -> int:
    return _whole(one.metric.get("rank", ""), 0)


def _whole(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else default


def _number(text: str) -> float:
    """Return a value, which any target may have written; nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan


def _finite(text: str) -> float | None:
    value = _number(text)
    return value if isfinite(value) else None


def _row(info: Labels, values: Mapping[str, Any], page: Callable[[Labels], str]) -> dict[str, Any]:
    """Return a run on one machine, as the list of runs has it."""
    state, step = values["state"] or "", values["step"]
    rank, loss = values["loss"] or (1 << 30, None)
    return {
        "id": info.get("run_id", ""),
        "name": info.get("run", ""),
        "state": state,
        "cause": "",
        "attempt": _whole(info.get("attempt", ""), 1),
        "started": values["started"],
        "ended": values["ended"] if state in ENDS else None,
        "step": None if step is None else int(step),
        "loss": None if loss is None else json_number(loss),
        "rank": rank,
        "host": info.get("host", ""),
        "user": info.get("user", ""),
        "tags": [],
        "summary": {},
        "config": {},
        "notes": "",
        "pinned": False,
        "url": page(info),
    }


def _merged(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each run: of its newest attempt, with the facts of the machine that has the lowest rank."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.get(row["id"])
        if known is None or known["attempt"] < row["attempt"]:
            found[row["id"]] = row
        elif known["attempt"] == row["attempt"]:
            first, other = sorted((known, row), key=lambda one: (one["rank"], one["host"]))
            both = {
                name: [one[name] for one in (first, other) if one[name] is not None] for name in ("step", "started")
            }
            hosts = ", ".join(dict.fromkeys(filter(None, (*first["host"].split(", "), other["host"]))))
            merged = {
                "step": max(both["step"], default=None),
                "host": hosts,
                "started": min(both["started"], default=None),
            }
            found[row["id"]] = {**first, **merged}
    for row in found.values():
        del row["rank"]
    return [*found.values()]
