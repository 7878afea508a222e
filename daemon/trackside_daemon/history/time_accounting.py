"""The time of a run's ranks: where it was spent, what was lost, and how efficiently the GPUs worked."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from trackside.totals.phases import PAUSES
from trackside_daemon.history.read.attempts import highest, last_time
from trackside_daemon.model.records import Account, AccountUpdated, BatchIngested, EarlierAttempts
from trackside_daemon.model.time_ledger import lost_in

_encode = msgspec.json.Encoder().encode


class StepTimes(msgspec.Struct, omit_defaults=True):
    """The time of the steps of a session, as far as it has pushed them."""

    seconds: float = 0.0  # duration of all steps, without evaluation and checkpoints
    count: int = 0  # number of these steps
    before: dict[str, float] | None = None  # seconds by phase before its first push; None until then
    until: dict[str, float] = {}  # seconds by phase until its last push

    def update(self, record: BatchIngested, earlier: Mapping[str, float]) -> None:
        """Apply a message with rows; *earlier* has the seconds by phase of the message before."""
        phases, last = record.phases, max(columns.times[-1] for columns in record.columns)
        closed = max(last, record.closed)
        # The phases are those of the moment when the message was closed. A pause may have begun after the last push.
        most = {phase: (closed - last) / 1e9 if phase in PAUSES else 0.0 for phase in phases}
        self.until = {
            phase: seconds - min(most[phase], max(0.0, seconds - earlier.get(phase, 0.0)))
            for phase, seconds in phases.items()
        }
        if self.before is None:
            pushing = (closed - min(columns.times[0] for columns in record.columns)) / 1e9
            self.before = {phase: max(0.0, seconds - pushing) for phase, seconds in phases.items()}
        if record.durations is not None:
            self.seconds, self.count = record.durations.sum, sum(record.durations.counts)


class RankTime(NamedTuple):
    """The time of one rank of one attempt."""

    attempt: int
    rank: int
    phases: dict[str, float]  # seconds by phase
    account: Account  # the daemon's account of the rank
    host: str = ""  # name of its machine; empty if unknown
    steps: tuple[float, int] = (0.0, 0)  # seconds and number of its steps, without evaluation and checkpoints
    before: Mapping[str, float] = {}  # seconds by phase before its first push
    after: Mapping[str, float] = {}  # seconds by phase after its last push

    @property
    def step_seconds(self) -> float | None:
        """Mean duration of its steps, without evaluation and checkpoints; None if it is unknown."""
        seconds, count = self.steps
        return seconds / count if count else None


def write_account(connection: sqlite3.Connection, run: int | None, record: AccountUpdated) -> None:
    """Replace the account of a rank; do nothing if the history does not have its run."""
    connection.execute(
        "UPDATE stream SET account = ? WHERE run = ? AND attempt = ? AND rank = ?",
        (_encode(record.account).decode(), run, record.attempt, record.rank),
    )


def rank_times(connection: sqlite3.Connection, run: int) -> list[RankTime]:
    """Return the times by attempt and rank, each summed over the rank's sessions."""
    times: dict[tuple[int, int], RankTime] = {}
    for attempt, rank, account, text, host, stored in connection.execute(
        "SELECT attempt, rank, account, phases, host, steps FROM stream LEFT JOIN session ON session.stream = stream.id "
        "WHERE run = ? ORDER BY attempt, rank, began",
        (run,),
    ):
        phases, steps = json.loads(text or "{}"), decode_steps(stored or "")
        before = steps.before or {}
        time = times.get((attempt, rank)) or RankTime(attempt, rank, {}, _account(account), host or "", before=before)
        for phase, seconds in phases.items():
            time.phases[phase] = time.phases.get(phase, 0.0) + seconds
        # The time between two sessions of a rank is between its first push and its last one.
        left = {} if steps.before is None else {name: one - steps.until.get(name, 0.0) for name, one in phases.items()}
        total = time.steps[0] + steps.seconds, time.steps[1] + steps.count
        times[attempt, rank] = time._replace(steps=total, after=left)
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
    lost: dict[int, dict[str, float]] = {}
    for time in earlier:
        daemon = {"restart": time.account.restart, "stall": time.account.stall}
        own, total = lost_in(time.phases), lost.setdefault(time.rank, {})
        for cause, seconds in {**own, **{cause: seconds for cause, seconds in daemon.items() if seconds}}.items():
            total[cause] = total.get(cause, 0.0) + seconds
    return EarlierAttempts(lost, highest(connection, row[0], last), ended, kept)


def mfu(times: Iterable[RankTime], attempts: Iterable[Mapping[str, Any]], now: float) -> float | None:
    """Return the FLOPs of the model divided by what the GPUs could have done in the attempts; None if that is unknown.

    Args:
        times: The times of the run's ranks.
        attempts: The run's attempts with ``attempt``, ``started`` and ``ended``.
        now: The end, in Unix seconds, of attempts that have not ended.
    """
    lengths = {one["attempt"]: (now if one["ended"] is None else one["ended"]) - one["started"] for one in attempts}
    working = [one for one in times if one.account.flops is not None and one.account.peak]
    most = sum((one.account.peak or 0.0) * lengths[one.attempt] for one in working)
    return sum(one.account.flops or 0.0 for one in working) / most if most > 0 else None


def decode_steps(text: str) -> StepTimes:
    """Return the step times of a session that are stored as *text*, which is empty before its first push.

    Raises:
        ValueError: The text is damaged.
    """
    try:
        return msgspec.json.decode(text, type=StepTimes) if text else StepTimes()
    except msgspec.MsgspecError as error:
        raise ValueError(f"damaged times of steps: {error}") from error


def _account(text: str) -> Account:
    try:
        return msgspec.json.decode(text, type=Account) if text else Account()
    except msgspec.MsgspecError as error:
        raise ValueError(f"a damaged account: {error}") from error
