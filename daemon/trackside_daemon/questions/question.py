"""A question: its parameters, which are checked once, and where they stand in a request.

What only some questions need is imported where they are answered: a command that asks a daemon answers none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import quote, urlencode

import msgspec
import msgspec.structs
from msgspec import Meta

from trackside_daemon.model.text import read_moment

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trackside_daemon.diagnosis.settings import CostSection
    from trackside_daemon.history.database import Database
    from trackside_daemon.history.read.offline import Offline
    from trackside_daemon.model.capture import Capture
    from trackside_daemon.model.records import Silence

    History = Database | Offline
    from trackside_daemon.history.read.series import Window

Q = TypeVar("Q", bound="Question")

SHOWN = 60  # characters of an invalid text in an error
DIGITS = 18  # of a whole number, which then fits into a 64-bit column
MOST_INTEGER = 10**DIGITS - 1
_PLACE = re.compile(r"{(\w+)}")

RunId = Annotated[
    str,
    msgspec.Meta(
        description="A run's id, its name (the newest run counts), or a unique beginning of its id; percent-encoded."
    ),
]

_MOST_SECONDS = 9e12  # seconds whose microseconds fit into a 64-bit column
_MOST_STEPS = 2.0**63  # a step may be a count of tokens
_KEY = "A pushed key, or, except for /export, a GPU or host series or family."
_RUN = "A run's id, its name or a unique beginning of its id."
_ONE_RUN = "run: name at least one run, by its id or name; the parameter may be repeated"
_BASELINE = "A run or a tag to compare with; by default the newest pinned run of the name, else the last finished."

RunName = Annotated[str, Meta(description=_RUN)]
RunNames = Annotated[tuple[str, ...], Meta(description=_RUN, extra={"lacks": _ONE_RUN})]
Seconds = Annotated[float, Meta(ge=-_MOST_SECONDS, le=_MOST_SECONDS, extra={"moment": True})]
FirstTime = Annotated[Seconds | None, Meta(description="The first time.")]
LastTime = Annotated[Seconds | None, Meta(description="The last time.")]
Key = Annotated[
    str, Meta(description=_KEY, extra={"lacks": "key: name exactly one key; for several, use /api/v1/series"})
]
Keys = Annotated[tuple[str, ...], Meta(description=_KEY)]
Baseline = Annotated[tuple[str, ...], Meta(description=_BASELINE)]
RANK = r"^(all|[0-9]{1,18})$"
_Rank = Annotated[str, Meta(pattern=RANK)]
Ranks = Annotated[tuple[_Rank, ...], Meta(description="A rank, or all; by default the lowest.")]
Attempt = Annotated[int | None, Meta(description="An attempt; by default all in order.")]
By = Annotated[Literal["step", "time"], Meta(description="Unit of from and to: step or time.")]
_Bound = Annotated[float, Meta(ge=-_MOST_STEPS, le=_MOST_STEPS, extra={"moment": True})]
First = Annotated[_Bound | None, Meta(description="The first step; with by=time the first time.")]
Last = Annotated[_Bound | None, Meta(description="The last step; with by=time the last time.")]
Limit = Annotated[int, Meta(description="At most so many entries, the newest.")]


class InvalidError(ValueError):
    """A parameter is invalid; the message names it, its value and what is right."""


class MissingError(LookupError):
    """The history does not have what was asked for."""


@dataclass(frozen=True)
class Live:
    """Facts that only a running daemon knows; without one, there are none.

    Attributes:
        prices: Returns the configured prices.
        straggler_ratio: Returns the multiple of the median rank's own time from which `StragglerRank` counts a rank as slow.
        runs: Returns the live runs with the values of their ranks.
        captures: Returns the captures that are in memory.
        silences: Returns the silences that are active at a Unix time; None for those of the history.
        batches: Asks a run, by its id, for the batches of a step; returns them as JSON. May take seconds.
        fleet: Returns the runs of all machines that a query selects, as JSON; a query that cannot be read is a `ValueError`.
        hang: Asks a run, by its id, why it makes no step; returns the verdict as JSON, or None. May take seconds.
    """

    prices: Callable[[], CostSection]
    straggler_ratio: Callable[[], float]
    runs: Callable[[], list[dict[str, Any]]] = list
    captures: Callable[[], Sequence[Capture]] = tuple
    silences: Callable[[float], Sequence[Silence]] | None = None
    fleet: Callable[[str], dict[str, Any]] = lambda _: {"runs": [], "problems": []}
    hang: Callable[[str], dict[str, Any] | None] = lambda _: None
    batches: Callable[[str, int, int | None], list[dict[str, Any]]] = lambda *_: []


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the history, or what else is asked in a request; the docstring of its class says what the answer is.

    Its fields are the parameters: a text, number, flag or choice, or a list of them if it may be repeated. One without a default
    is required. Of `msgspec.Meta` they have bounds, a sentence as ``description``, and in ``extra`` what a request ``lacks``
    without it.
    """

    path: ClassVar[str]  # its path in the API, with the names of parameters in braces
    fields: ClassVar[tuple[str, ...]]  # fields that each answer has
    about: ClassVar[str] = ""  # more about its parameters and its answer
    reads: ClassVar[bool] = True  # `answer` reads the history

    @property
    def is_stream(self) -> bool:
        """True if the answer may be too large for memory: `pieces` has it."""
        return False

    def answer(self, history: History, live: Live) -> dict[str, Any]:
        """Return the answer from the history, as JSON.

        Raises:
            InvalidError: The parameters do not fit each other.
            MissingError: The history does not have it; of a run it is an `UnknownRunError`.
        """
        if self.is_stream:
            return dict(msgspec.json.decode(b"".join(self.pieces(history))))
        with history.reading() as connection:
            return self._read(connection, live)

    def _read(self, connection: sqlite3.Connection, live: Live) -> dict[str, Any]:
        """Return the answer from one snapshot; a question that needs more has its own `answer`."""
        raise NotImplementedError

    def pieces(self, history: History) -> Iterator[bytes]:
        """Return the JSON of an answer in pieces, which are read one by one; errors are those of `answer`."""
        raise NotImplementedError

    def complete(self, found: dict[str, Any], live: Live) -> dict[str, Any]:
        """Return an answer with what takes seconds to learn from others than the history; most have nothing of it."""
        del live
        return found

    @classmethod
    def waits(cls) -> bool:
        """Return whether `complete` may wait for others."""
        return cls.complete is not Question.complete


class OfRun(Question, frozen=True, kw_only=True):
    """A question about one run."""

    id: RunId

    def uid(self, connection: sqlite3.Connection) -> str:
        """Return the id of the run.

        Raises:
            UnknownRunError: There is no such run.
        """
        from trackside_daemon.history.read import reader

        return reader.resolve(connection, self.id)


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str  # its name in the request
    field: str  # its name in Python
    kind: str  # ``string``, ``integer``, ``number`` or ``boolean``, as in JSON
    is_list: bool  # whether it may be repeated
    default: Any  # its value if it is absent, or None
    lacks: str  # what a request without it lacks; empty if it may be absent
    description: str  # its sentence
    choices: tuple[str, ...]  # the only texts that it may be, if there are some
    low: float | None  # least number
    high: float | None  # largest number; of a text or a list its largest length. None if it has no limit
    is_moment: bool = False  # whether a number may also be a date, as `read_moment` reads it
    pattern: str = ""  # regular expression of a text; empty for any


_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


@cache
def parameters(kind: type[Question]) -> tuple[Parameter, ...]:
    """Return the parameters of a class, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(_parameter(field, list(_parts(hints[field.name]))) for field in msgspec.structs.fields(kind))


def _parameter(field: msgspec.structs.FieldInfo, parts: list[Any]) -> Parameter:
    about = [one for one in parts if isinstance(one, msgspec.Meta)]
    low, high, length, description, pattern = (
        next((value for one in about if (value := getattr(one, name)) is not None), None)
        for name in ("ge", "le", "max_length", "description", "pattern")
    )
    extra = {name: value for one in about for name, value in (one.extra or {}).items()}
    kind = next((_KINDS[one] for one in parts if isinstance(one, type) and one in _KINDS), "string")
    is_list = ... in parts  # as in tuple[str, ...]
    choices = tuple(extra.get("choices") or (one for one in parts if isinstance(one, str)))
    lacks = extra.get("lacks", f"{field.encode_name}: is missing") if field.required else ""
    high = length if high is None else high
    default = None if field.required else field.default
    name, words = field.encode_name, description or ""
    moment = bool(extra.get("moment"))
    return Parameter(name, field.name, kind, is_list, default, lacks, words, choices, low, high, moment, pattern or "")


def _parts(hint: Any) -> Iterator[Any]:
    """Yield what a type is made of: types, choices, and what is written about it."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def parse(kind: type[Q], path: Mapping[str, str], query: Iterable[tuple[str, str]]) -> Q:
    """Return the parameters of a request; of several texts for one value, the last counts.

    Args:
        kind: Their class.
        path: The values of the names in braces of the path.
        query: Names and values of the query.

    Raises:
        InvalidError: One is invalid, or missing.
    """
    texts: dict[str, list[str]] = {}
    for name, text in query:
        texts.setdefault(name, []).append(text)
    texts |= {name: [text] for name, text in path.items()}
    values = {}
    for one in parameters(kind):
        given = texts.get(one.name, [])
        if one.lacks and (not given if one.is_list else len(given) != 1):
            raise InvalidError(one.lacks)
        if one.is_list and one.high is not None and len(given) > one.high:
            raise InvalidError(f"{one.name}: at most {one.high} at a time")
        if one.is_list:
            values[one.field] = tuple(_value(one, text) for text in given)
        elif given and (given[-1] or one.lacks or one.kind != "string" or one.choices):
            values[one.field] = _value(one, given[-1])
    return kind(**values)


def _value(one: Parameter, text: str) -> Any:
    """Return the value of a text."""
    if one.choices or one.kind == "boolean":
        choices = one.choices or ("true", "false")
        if text not in choices:
            valid = " or ".join(choices) if len(choices) < 3 else f"one of {', '.join(choices)}"
            raise InvalidError(f"{one.name}: must be {valid}, not {text[:SHOWN]!r}")
        return text == "true" if one.kind == "boolean" else text
    if one.kind == "string":
        if not one.is_list and one.high is not None and len(text) > one.high:
            raise InvalidError(f"{one.name}: longer than {one.high} characters")
        return text
    number = _number(text, whole=one.kind == "integer")
    if isnan(number) and one.is_moment:
        try:
            return read_moment(text)
        except ValueError as error:
            raise InvalidError(f"{one.name}: {error}; Unix seconds are right, too"[:500]) from None
    low, high = one.low or 0, MOST_INTEGER if one.high is None else one.high
    if not low <= number <= high:  # nor is NaN
        bounds = f"{low:g} to {high:g}" if one.kind == "number" else f"{low} to {high}"
        raise InvalidError(f"{one.name}: {text[:SHOWN]!r} is not a number from {bounds}")
    return number


def _number(text: str, *, whole: bool) -> float:
    """Return a number; NaN if it is none."""
    if whole:  # isdecimal() alone accepts digits of other scripts
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else nan
    try:
        return float(text)
    except ValueError:
        return nan


def request(question: Question) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the texts for the names in the path of a question, and those of its query; absent is what has its default."""
    inside = set(_PLACE.findall(question.path))
    path, query = {}, []
    for one in parameters(type(question)):
        value = getattr(question, one.field)
        if one.name in inside:
            path[one.name] = str(value)
        elif value != one.default:
            query += [(one.name, _text(item)) for item in (value if one.is_list else [value])]
    return path, query


def address(question: Question) -> str:
    """Return path and query of a question in the API."""
    path, query = request(question)
    place = _PLACE.sub(lambda found: quote(path[found[1]], safe=""), question.path)
    return f"{place}?{urlencode(query)}" if query else place


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class RunPart(Question, frozen=True, kw_only=True):
    """A part of what a run has: ranks, an attempt, and a window of steps or times."""

    rank: Ranks = ()
    attempt: Attempt = None
    by: By = "step"
    first: First = msgspec.field(default=None, name="from")
    last: Last = msgspec.field(default=None, name="to")

    def ranks(self) -> list[int] | None:
        """Return the ranks; empty for all, None if none was named.

        Raises:
            InvalidError: One is no rank.
        """
        if "all" in self.rank:
            return []
        for rank in self.rank:
            if not (rank.isascii() and rank.isdecimal() and len(rank) <= DIGITS):
                raise InvalidError(f"rank: {rank[:SHOWN]!r} is not a number; use rank=all for every rank")
        return [int(rank) for rank in self.rank] or None

    def window(self) -> Window:
        """Return the window."""
        from trackside_daemon.history.read.series import Window

        return Window(self.by, *limits(self.first, self.last, _MOST_SECONDS if self.by == "time" else _MOST_STEPS))


def limits(first: float | None, last: float | None, most: float = _MOST_SECONDS) -> tuple[float, float]:
    """Return both ends of a window, at most *most*; infinite where there is none."""
    begin = -inf if first is None else max(-most, min(most, first))
    return begin, inf if last is None else max(-most, min(most, last))
