"""Parameters that several questions have."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from trackside_daemon.questions.question import DIGITS, SHOWN, InvalidError, Question

if TYPE_CHECKING:
    from trackside_daemon.history.read.series import Window

_MOST_SECONDS = 9e12  # seconds whose microseconds fit into a 64-bit column
_MOST_STEPS = 2.0**63
_KEY = (
    "A pushed key; except on /export, also the name of a GPU or host series or family. Repeatable on /series, /export."
)
_RUN = "A run's id, its name or a unique beginning of its id. May be repeated on /series and /comparison."
_ONE_RUN = "run: name at least one run, by its id or name; the parameter may be repeated"
_BASELINE = "A run or a tag to compare with. May be repeated. Default: the newest pinned run of the name, else the last finished."

RunName = Annotated[str, Meta(description=_RUN)]
RunNames = Annotated[tuple[str, ...], Meta(description=_RUN, extra={"lacks": _ONE_RUN})]
Seconds = Annotated[float, Meta(ge=-_MOST_SECONDS, le=_MOST_SECONDS)]
FirstTime = Annotated[Seconds | None, Meta(description="First Unix time.")]
LastTime = Annotated[Seconds | None, Meta(description="Last Unix time.")]
Key = Annotated[
    str, Meta(description=_KEY, extra={"lacks": "key: name exactly one key; for several, use /api/v1/series"})
]
Keys = Annotated[tuple[str, ...], Meta(description=_KEY)]
Baseline = Annotated[tuple[str, ...], Meta(description=_BASELINE)]
Ranks = Annotated[tuple[str, ...], Meta(description="A rank, or all. May be repeated. Without it, the lowest rank.")]
Attempt = Annotated[int | None, Meta(description="An attempt. Without it, all attempts in order.")]
By = Annotated[
    Literal["step", "time"], Meta(description="Unit of from and to: step (the default), or time in Unix seconds.")
]
_Bound = Annotated[float, Meta(ge=-_MOST_STEPS, le=_MOST_STEPS)]
First = Annotated[_Bound | None, Meta(description="First step or time.")]
Last = Annotated[_Bound | None, Meta(description="Last step or time.")]
Limit = Annotated[int, Meta(description="Maximum number of entries. The newest are returned.")]


class Part(Question, frozen=True, kw_only=True):
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
        if self.rank == ("all",):
            return []
        for rank in self.rank:
            if not (rank.isascii() and rank.isdecimal() and len(rank) <= DIGITS):
                raise InvalidError(f"rank: {rank[:SHOWN]!r} is not a number; use rank=all for every rank")
        return [int(rank) for rank in self.rank] or None

    def window(self) -> Window:
        """Return the window.

        Raises:
            InvalidError: A time is too large.
        """
        from trackside_daemon.history.read.series import Window

        return Window(self.by, *limits(self.first, self.last, _MOST_SECONDS if self.by == "time" else _MOST_STEPS))


def limits(first: float | None, last: float | None, most: float = _MOST_SECONDS) -> tuple[float, float]:
    """Return both ends of a window, infinite where there is none.

    Raises:
        InvalidError: One is beyond *most*.
    """
    for name, value in (("from", first), ("to", last)):
        if value is not None and abs(value) > most:
            raise InvalidError(f"{name}: '{value:g}' is not a number from -{most:g} to {most:g}")
    return -inf if first is None else first, inf if last is None else last
