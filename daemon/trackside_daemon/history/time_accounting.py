"""What the time of a run's ranks was spent on, and what of it is lost: as sessions and the daemon have told it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trackside_daemon.history.read.attempts import highest, last_time
from trackside_daemon.model.records import Account, EarlierAttempts, lost_in

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping

    from trackside_daemon.model.records import AccountUpdated

_encode = msgspec.json.Encoder().encode


class RankTime(NamedTuple):
    """The time of one rank of one attempt: seconds by phase, and what only the daemon knows."""

    attempt: int
    rank: int
    phases: dict[str, float]
    account: Account

    @property
    def lost(self) -> dict[str, float]:
        """Seconds by cause."""
        own = {"restart": self.account.restart, "stall": self.account.stall}
        return {**lost_in(self.phases), **{cause: seconds for cause, seconds in own.items() if seconds}}


def write_account(connection: sqlite3.Connection, run: int | None, record: AccountUpdated) -> None:
    """Put a rank's account in the place of the one before; nothing of a run that is not there."""
    connection.execute(
        "UPDATE stream SET account = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (_encode(record.account).decode(), run, record.attempt, record.rank),
    )


def rank_times(connection: sqlite3.Connection, run: int) -> list[RankTime]:
    """Attempt by attempt and rank by rank, over all sessions of each."""
    found: dict[tuple[int, int], RankTime] = {}
    for attempt, rank, account, text in connection.execute(
        "SELECT attempt, rank, account, phases FROM stream LEFT JOIN session ON session.stream = stream.id "
        "WHERE run = ? ORDER BY attempt, rank",
        (run,),
    ):
        one = found.setdefault((attempt, rank), RankTime(attempt, rank, {}, _account(account)))
        for phase, seconds in json.loads(text or "{}").items():
            one.phases[phase] = one.phases.get(phase, 0.0) + seconds
    return list(found.values())


def earlier_attempts(connection: sqlite3.Connection, uid: str, attempt: int) -> EarlierAttempts:
    """What is known of a run before an attempt, and of that one what was kept.

    An attempt whose end nobody saw, as when the machine went down, has ended when something was last heard of it.
    """
    row = connection.execute("SELECT id FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    if row is None:
        return EarlierAttempts()
    every = rank_times(connection, row[0])
    kept = {one.rank: one.account for one in every if one.attempt == attempt}
    earlier = [one for one in every if one.attempt < attempt]
    if not earlier:
        return EarlierAttempts(kept=kept)
    last = max(one.attempt for one in earlier)
    (ended,) = connection.execute("SELECT ended FROM attempt WHERE run = ? AND number = ?", (row[0], last)).fetchone()
    ended = last_time(connection, uid, last) if ended is None else ended
    return EarlierAttempts(
        {one.rank: _lost(earlier, one.rank) for one in earlier}, highest(connection, row[0], last), ended, kept
    )


def efficiency(every: Iterable[RankTime], attempts: Iterable[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """``goodput``, ``lost`` by cause as shares of the time, and ``mfu``, as far as they are known.

    Args:
        every: The run's.
        attempts: With ``attempt``, ``started`` and ``ended``.
        now: When those end that have not, in Unix seconds.
    """
    spans = {one["attempt"]: (one["started"], now if one["ended"] is None else one["ended"]) for one in attempts}
    told = list(every)
    begun, over = (
        min((span[0] for span in spans.values()), default=0.0),
        max((e for _, e in spans.values()), default=0.0),
    )
    if not told or over <= begun:
        return {}
    ranks = {one.rank for one in told}
    seconds = _lost(told)
    shares = {cause: min(1.0, rank_times / (over - begun) / len(ranks)) for cause, rank_times in seconds.items()}
    measured = any(one.phases or one.account != Account() for one in told)
    found: dict[str, Any] = {"goodput": max(0.0, 1.0 - sum(shares.values())), "lost": shares} if measured else {}
    work = [one for one in told if one.account.flops is not None and one.account.peak]
    most = sum((one.account.peak or 0.0) * (spans[one.attempt][1] - spans[one.attempt][0]) for one in work)
    if most > 0:
        found["mfu"] = sum(one.account.flops or 0.0 for one in work) / most
    return found


def _lost(every: Iterable[RankTime], rank: int | None = None) -> dict[str, float]:
    """Seconds by cause, of one rank or of all together."""
    found: dict[str, float] = {}
    for one in every:
        for cause, seconds in one.lost.items() if rank in {None, one.rank} else ():
            found[cause] = found.get(cause, 0.0) + seconds
    return found


def _account(text: str) -> Account:
    try:
        return msgspec.json.decode(text, type=Account) if text else Account()
    except msgspec.MsgspecError as error:
        raise ValueError(f"a damaged account: {error}") from error
