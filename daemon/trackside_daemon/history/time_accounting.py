"""The time of a run's ranks: where it was spent, what was lost, and how efficiently the GPUs worked."""

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
    """The time of one rank of one attempt: seconds by phase, and the daemon's account of the rank, on its host."""

    attempt: int
    rank: int
    phases: dict[str, float]
    account: Account
    host: str = ""

    @property
    def lost(self) -> dict[str, float]:
        """Lost seconds by cause."""
        daemon = {"restart": self.account.restart, "stall": self.account.stall}
        return {**lost_in(self.phases), **{cause: seconds for cause, seconds in daemon.items() if seconds}}


def write_account(connection: sqlite3.Connection, run: int | None, record: AccountUpdated) -> None:
    """Replace the account of a rank; do nothing if the history does not have its run."""
    connection.execute(
        "UPDATE stream SET account = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (_encode(record.account).decode(), run, record.attempt, record.rank),
    )


def rank_times(connection: sqlite3.Connection, run: int) -> list[RankTime]:
    """Return the times by attempt and rank, each summed over the rank's sessions."""
    times: dict[tuple[int, int], RankTime] = {}
    for attempt, rank, account, text, host in connection.execute(
        "SELECT attempt, rank, account, phases, host FROM stream LEFT JOIN session ON session.stream = stream.id "
        "WHERE run = ? ORDER BY attempt, rank",
        (run,),
    ):
        time = times.setdefault((attempt, rank), RankTime(attempt, rank, {}, _account(account), host or ""))
        for phase, seconds in json.loads(text or "{}").items():
            time.phases[phase] = time.phases.get(phase, 0.0) + seconds
    return list(times.values())


def earlier_attempts(connection: sqlite3.Connection, uid: str, attempt: int) -> EarlierAttempts:
    """Return the losses, the highest step and the end of a run before an attempt, and this attempt's accounts.

    An attempt without an end, as after a crash of the machine, ended at its last push.
    """
    row = connection.execute("SELECT id FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    if row is None:
        return EarlierAttempts()
    times = rank_times(connection, row[0])
    kept = {time.rank: time.account for time in times if time.attempt == attempt}
    earlier = [time for time in times if time.attempt < attempt]
    if not earlier:
        return EarlierAttempts(kept=kept)
    last = max(time.attempt for time in earlier)
    (ended,) = connection.execute("SELECT ended FROM attempt WHERE run = ? AND number = ?", (row[0], last)).fetchone()
    ended = last_time(connection, uid, last) if ended is None else ended
    return EarlierAttempts(
        {time.rank: _lost(earlier, time.rank) for time in earlier}, highest(connection, row[0], last), ended, kept
    )


def efficiency(times: Iterable[RankTime], attempts: Iterable[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """Return ``goodput``, ``lost`` by cause as shares of the time, and ``mfu``; without those that are unknown.

    Args:
        times: The times of the run's ranks.
        attempts: The run's attempts with ``attempt``, ``started`` and ``ended``.
        now: The end, in Unix seconds, of attempts that have not ended.
    """
    spans = {
        attempt["attempt"]: (attempt["started"], now if attempt["ended"] is None else attempt["ended"])
        for attempt in attempts
    }
    ranks = list(times)
    begin = min((span[0] for span in spans.values()), default=0.0)
    end = max((span[1] for span in spans.values()), default=0.0)
    if not ranks or end <= begin:
        return {}
    rank_count = len({rank.rank for rank in ranks})
    shares = {cause: min(1.0, seconds / (end - begin) / rank_count) for cause, seconds in _lost(ranks).items()}
    measured = any(rank.phases or rank.account != Account() for rank in ranks)
    result: dict[str, Any] = {"goodput": max(0.0, 1.0 - sum(shares.values())), "lost": shares} if measured else {}
    working = [rank for rank in ranks if rank.account.flops is not None and rank.account.peak]
    peak_flops = sum((rank.account.peak or 0.0) * (spans[rank.attempt][1] - spans[rank.attempt][0]) for rank in working)
    if peak_flops > 0:
        result["mfu"] = sum(rank.account.flops or 0.0 for rank in working) / peak_flops
    return result


def _lost(times: Iterable[RankTime], rank: int | None = None) -> dict[str, float]:
    """Return the lost seconds by cause, of one rank or of all."""
    lost: dict[str, float] = {}
    for time in times:
        for cause, seconds in time.lost.items() if rank in {None, time.rank} else ():
            lost[cause] = lost.get(cause, 0.0) + seconds
    return lost


def _account(text: str) -> Account:
    try:
        return msgspec.json.decode(text, type=Account) if text else Account()
    except msgspec.MsgspecError as error:
        raise ValueError(f"a damaged account: {error}") from error
