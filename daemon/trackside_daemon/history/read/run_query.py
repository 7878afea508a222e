"""The language in which people ask for runs: ``lr=3e-4 bs>=64 tag:sweep failed -debug /re.*gex/ older:7d``.

The page of the runs, the commands, the API and the tools of agents read it here. docs/queries.md describes it.
"""

import json
import operator
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isnan
from typing import Any, NamedTuple

from trackside_daemon.config.near import near_name
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read.reader import MACHINE
from trackside_daemon.history.schema import BLOCK_BITS, HOST
from trackside_daemon.model.configuration import flat, meant, result
from trackside_daemon.model.families.training import STATES
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.text import matches_wildcards, read_moment, seconds

MOST_KEYS = 1000  # keys that a table may choose from: those of the most runs
MOST_SERIES = 200_000  # series that are looked through for them

_LOWEST = "(stream.run, stream.rank) IN (SELECT run, min(rank) FROM stream GROUP BY run)"


def configurations(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the configuration of the last attempt that has one, by the id of the run."""
    rows = connection.execute(
        "SELECT run.uid, attempt.config FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE attempt.config != '' AND NOT run.deleted ORDER BY attempt.number"
    )
    found = {}
    for uid, text in dict(rows).items():
        with suppress(ValueError):
            found[uid] = json.loads(text)
    return found


def values(connection: sqlite3.Connection, keys: Collection[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``last``, ``min`` and ``max`` of keys of each run's lowest rank, by the id of the run and the key.

    They are of the packed samples: those of a run that has just begun are missing. The last value is that of the last attempt.
    """
    places = ", ".join("?" * len(keys))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for uid, key, low, high, last in connection.execute(
        "SELECT run.uid, series.key, series.min, series.max, (SELECT ifnull(last, 'nan') FROM block WHERE block.id >= series.id << ? "  # noqa: S608
        "AND block.id < series.id + 1 << ? ORDER BY block.id DESC LIMIT 1) FROM run JOIN stream ON stream.run = run.id "
        f"JOIN series ON series.stream = stream.id AND series.key IN ({places}) "
        f"WHERE NOT run.deleted AND run.id != {HOST} AND {_LOWEST} ORDER BY stream.attempt",
        (BLOCK_BITS, BLOCK_BITS, *keys),
    ):
        before = found.setdefault(uid, {}).get(key, {})
        lows = [float(value) for value in (low, before.get("min")) if value is not None]
        highs = [float(value) for value in (high, before.get("max")) if value is not None]
        found[uid][key] = {
            "last": before.get("last") if last is None else json_number(float(last)),
            "min": json_number(min(lows)) if lows else None,
            "max": json_number(max(highs)) if highs else None,
        }
    return found


def keys(connection: sqlite3.Connection, most: int | None = MOST_KEYS) -> list[str]:
    """Return the keys that runs have pushed, those of the most runs first; at most so many, or None for all."""
    rows = connection.execute(
        f"SELECT series.key FROM series JOIN stream ON stream.id = series.stream WHERE stream.run != {HOST} AND {_LOWEST} LIMIT ?",  # noqa: S608
        (MOST_SERIES,),
    )
    counts = Counter(key for (key,) in rows if not key.startswith(MACHINE))
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]


LONGEST = 1000  # characters of a query
SHOWN = 60  # characters of it in an error
SECONDS = 2.0  # after which a pattern is given up: strangers name runs, and tag them
MOST_REPEATS = 2  # repeats in a pattern: the time of a stranger's pattern grows with their power

FIELDS = (
    "name",
    "id",
    "state",
    "tag",
    "user",
    "host",
    "notes",
    "cause",
    "loss",
    "step",
    "started",
    "ended",
    "duration",
    "older",
    "newer",
)

_TERM = re.compile(
    r"""(?P<not>-?)(?:
        /(?P<pattern>(?:[^/\\]|\\.)+)/
        | (?:(?P<field>[^\s"=<>!:]+)(?P<test>[<>!]=|[:=<>]))?(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]+))
    )(?=\s|$)""",
    re.VERBOSE,
)
_GROUP = re.compile(r"(?:[^\\(]|\\.)*(?:\(|\\[1-9])", re.DOTALL)
_REPEAT = re.compile(r"\\.|(?P<repeat>[*+?]|\{\d*,\d*\})", re.DOTALL)
_MOMENTS = ("started", "ended", "older", "newer")
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CLOSE = 1e-9  # relative difference of equal numbers


class QueryError(HistoryError, ValueError):
    """A query cannot be read; the message says which part, and what is right."""


class Term(NamedTuple):
    """A condition of a query."""

    text: str  # as it was written
    negative: bool  # whether it selects the other runs
    field: str  # the name before the comparison; empty for a word or a pattern
    test: str  # ``:``, ``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``; empty for a word or a pattern
    value: str  # what the field is compared with; a word; empty for a pattern
    quoted: bool  # whether the value stood in quotes: it is a text, without alternatives and wildcards
    pattern: re.Pattern[str] | None  # the pattern, if it is one

    @property
    def values(self) -> list[str]:
        """The alternatives that ``|`` separates."""
        return [self.value] if self.quoted else [part for part in self.value.split("|") if part]


class SelectedRuns(NamedTuple):
    """The runs that a query selects."""

    runs: list[dict[str, Any]]  # the runs, in their order
    hint: str  # why there are none, and what is near; empty if there are some


def parse(query: str) -> list[Term]:
    """Return the terms of a query.

    Raises:
        QueryError: A part of it is none.
    """
    if len(query) > LONGEST:
        raise QueryError(f"longer than {LONGEST} characters")
    terms, at, text = [], 0, query.rstrip()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        found = _TERM.match(text, at)
        if found is None:
            raise QueryError(
                f'{text[at : at + SHOWN]!r} is no term; write a word, name=value, name>value, /pattern/ or "a text", and - before what to leave out'
            )
        terms.append(_term(found))
        at = found.end()
    return terms


def _term(found: re.Match[str]) -> Term:
    quoted = found["quoted"]
    value = (quoted if quoted is not None else found["plain"]) or ""
    pattern = _pattern(found["pattern"]) if found["pattern"] else None
    term = Term(
        found[0], bool(found["not"]), found["field"] or "", found["test"] or "", value, quoted is not None, pattern
    )
    try:
        if term.field in _MOMENTS and (term.test in _ORDER or term.field not in {"started", "ended"}):
            read_moment(value)
        elif term.test in _ORDER and _bound(term) is None:
            raise ValueError(f"{value[:SHOWN]!r} is no number")  # noqa: TRY301  the handler words both
    except ValueError as error:
        raise QueryError(f"{term.text[:SHOWN]}: {error}") from None
    return term


def _bound(term: Term) -> float | None:
    """Return the number that a value has to be above or below."""
    if term.field in _MOMENTS:
        return read_moment(term.value)
    return _number(seconds(term.value)) if term.field == "duration" else _number(term.value)


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that ends soon on every short text: Python's own may need time that is exponential in its length."""
    repeats = sum(found["repeat"] is not None for found in _REPEAT.finditer(text))
    if repeats > MOST_REPEATS or _GROUP.match(text):
        raise QueryError(
            f"/{text[:SHOWN]}/: a pattern has no group, and at most {MOST_REPEATS} of * + ? {{m,n}}; | separates alternatives"
        )
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise QueryError(f"/{text[:SHOWN]}/: {error}") from None


def select(
    connection: sqlite3.Connection | None,
    terms: Sequence[Term],
    runs: Iterable[dict[str, Any]],
    seconds: float = SECONDS,
) -> SelectedRuns:
    """Return those of the listed runs that all terms select, and why there are none.

    Without a *connection*, the runs have their ``config`` with them, and no keys.

    A field is a fact of the run (`FIELDS`), the whole or the last part of the name of a setting or a result, or a key, whose last
    value counts.

    Raises:
        QueryError: A pattern takes too long.
    """
    columns = _Columns(connection, runs, seconds)
    tests = [columns.test(term) for term in terms]
    selected = [run for run in columns.runs if all(test(run) for test in tests)]
    return SelectedRuns(selected, "" if selected or not columns.runs else columns.hint(terms, tests))


def ordered(connection: sqlite3.Connection | None, runs: Iterable[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Return runs by a field, as `select` knows fields; a ``-`` in front reverses it. What is NaN or missing comes last.

    Raises:
        QueryError: No run has such a field, and it is none that a run can have.
    """
    columns = _Columns(connection, runs, SECONDS)
    field = by.removeprefix("-")
    read = columns.column(field)
    found = [(next(iter(read(run)), None), run) for run in columns.runs]
    if found and field not in FIELDS and not any(value is not None for value, _ in found):
        raise QueryError(f"order: {columns.nearest(parse(f'{field}=0')[0])}")
    numbers = {
        run["id"]: number for value, run in found if (number := _number(value)) is not None and not isnan(number)
    }
    texts = {run["id"]: str(value) for value, run in found if value is not None and _number(value) is None}
    key: Mapping[str, Any] = numbers if len(numbers) >= len(texts) else texts
    present = [run for _, run in found if run["id"] in key]
    present.sort(key=lambda run: key[run["id"]], reverse=by.startswith("-"))
    return [*present, *(run for _, run in found if run["id"] not in key)]


class _Columns:
    """The values that the terms compare, of all runs."""

    def __init__(self, connection: sqlite3.Connection | None, runs: Iterable[dict[str, Any]], limit: float) -> None:
        self.runs = list(runs)
        self._connection = connection
        self._now = time.time()
        self._until = time.monotonic() + limit
        self._settings: dict[str, dict[str, Any]] | None = None

    def test(self, term: Term) -> Callable[[Mapping[str, Any]], bool]:
        """Return the condition of a term on a run."""
        if not term.field:
            return lambda run: self._has_word(term, run) is not term.negative
        values = self.column(term.field)
        test = {"older": "<=", "newer": ">="}.get(term.field, term.test)
        holds = partial(_is_beyond, _ORDER[test], _bound(term)) if test in _ORDER else partial(_holds, term)
        return lambda run: any(map(holds, values(run))) is not term.negative

    def _has_word(self, term: Term, run: Mapping[str, Any]) -> bool:
        texts = [run["name"], run["id"], *run["tags"]]
        if term.pattern:
            if time.monotonic() > self._until:
                raise QueryError(f"{term.text[:SHOWN]}: takes too long over these runs; repeat less in it")
            return any(term.pattern.search(text[:256]) for text in texts)
        texts.append(run.get("notes") or "")
        return any(_has(run, texts, value, quoted=term.quoted) for value in term.values)

    def column(self, field: str) -> Callable[[Mapping[str, Any]], list[Any]]:
        """Return what reads the values of a field of a run: none, one, or several."""
        facts: dict[str, Callable[[Mapping[str, Any]], list[Any]]] = {
            "tag": lambda run: run["tags"],
            "tags": lambda run: run["tags"],
            "duration": lambda run: [] if run["started"] is None else [(run["ended"] or self._now) - run["started"]],
            "older": lambda run: [run["started"]],
            "newer": lambda run: [run["started"]],
        }
        if field in facts:
            return facts[field]
        if field in FIELDS:
            return lambda run: [] if run.get(field) is None else [run[field]]
        settings = self.settings()
        named = meant((name for found in settings.values() for name in found), field)
        if named:
            return lambda run: [value for name, value in settings[run["id"]].items() if name in named]
        last = {} if self._connection is None else values(self._connection, [field])
        return lambda run: [value["last"] for value in last.get(run["id"], {}).values() if value["last"] is not None]

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return ``config.NAME`` and ``summary.NAME`` of each run, by its id."""
        if self._settings is None:
            configured = (
                {run["id"]: run["config"] for run in self.runs}
                if self._connection is None
                else configurations(self._connection)
            )
            self._settings = {
                run["id"]: {**flat(configured.get(run["id"]) or {}, "config"), **flat(run["summary"], "summary")}
                for run in self.runs
            }
        return self._settings

    def hint(self, terms: Sequence[Term], tests: Sequence[Callable[[Mapping[str, Any]], bool]]) -> str:
        """Return what is near the first term that no run satisfies."""
        for term, test in zip(terms, tests, strict=True):
            if any(test(run) for run in self.runs):
                continue
            if term.negative or term.pattern or term.field in _MOMENTS:
                return f"no run matches {term.text}"
            if not term.field:
                return f"no run matches {term.text}{near_name(term.value, [run['name'] for run in self.runs])}"
            return self.nearest(term)
        return "each term matches a run, but no run matches all of them"

    def nearest(self, term: Term) -> str:
        """Return what is near a term that no run satisfies."""
        values = self.column(term.field)
        found = [value for run in self.runs for value in values(run)]
        if not found:
            settings = {name for of_run in self.settings().values() for name in of_run}
            parts = {part for name in settings for part in (name.partition(".")[2], name.rpartition(".")[2])}
            names = parts.union(settings, FIELDS, () if self._connection is None else keys(self._connection))
            return f"no run has {term.field}{near_name(term.field, names, 'quotes search for it as a text')}"
        wanted = _number(term.value)
        numbers = [number for value in found if (number := _number(value)) is not None]
        if wanted is not None and numbers:
            nearest = min(numbers, key=lambda number: abs(number - wanted))
            return f"no run has {term.text}; the nearest is {term.field}={nearest:.12g}"
        return f"no run has {term.text}{near_name(term.value, map(str, found), f'such as {term.field}={result(found[0])}')}"


def _is_beyond(order: Callable[[float, float], bool], bound: float | None, value: Any) -> bool:
    found = _number(value)
    return found is not None and bound is not None and order(found, bound)


def _holds(term: Term, value: Any) -> bool:
    return any(_is_equal(term, value, wanted) for wanted in term.values) is not (term.test == "!=")


def _has(run: Mapping[str, Any], texts: Iterable[str], word: str, *, quoted: bool) -> bool:
    if not quoted and word in STATES:
        return bool(run["state"] == word)
    if not quoted and word in {"live", "pinned"}:
        return bool(run["pinned"]) if word == "pinned" else run["state"] not in ENDED
    return any(word.lower() in text.lower() for text in texts)


def _is_equal(term: Term, value: Any, wanted: str) -> bool:
    number, other = _number(value), _number(wanted)
    if number is not None and other is not None and not isinstance(value, bool):
        return number == other or abs(number - other) <= _CLOSE * max(abs(number), abs(other))
    text = result(value).lower() if not isinstance(value, str) else value.lower()
    wanted = wanted.lower()
    if term.quoted:
        return text == wanted
    return matches_wildcards(text, wanted) or (
        term.test == ":" and term.field not in {"tag", "tags"} and wanted in text
    )


def _number(value: Any) -> float | None:
    """Return a number, also of a text such as ``3e-4``; None if it is none."""
    try:
        return None if isinstance(value, list | dict) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
