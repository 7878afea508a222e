"""Send what the history has to one target, from the position up to which the target has it, and retry what failed."""

from __future__ import annotations

import random
import sqlite3
import time
from typing import TYPE_CHECKING

from trackside_daemon.bridges.mirrors.messages import LONGEST_SECONDS, Status
from trackside_daemon.bridges.mirrors.target import MirroredRun, State
from trackside_daemon.bridges.mirrors.unsent import mirrored_runs, streams, totals, unsent, unsent_layers
from trackside_daemon.history.database import open_reader
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.bridges.mirrors.positions import Positions
    from trackside_daemon.bridges.mirrors.target import Row, Target
    from trackside_daemon.bridges.mirrors.unsent import Stream

LAYERS = "\0distributions"  # key of the position of distributions, the id of the last row
MAX_VALUES = 20_000  # values that are read and sent at once

FIRST_SECONDS = 1.0  # back-off after the first failure; it doubles with each further one

MACHINE = MirroredRun("", "", "running", (), 0.0, None, "", {}, {})


class Mirror:
    """Mirrors the history to a target.

    Args:
        history: The history's file.
        positions: Positions up to which the target has it.
        target: The target.
        every_rank: Mirror all ranks, not only the lowest.
        ending: Returns True when no time is left.

    Attributes:
        status: Its counters.
    """

    def __init__(
        self,
        history: Path,
        positions: Positions,
        target: Target,
        *,
        every_rank: bool = False,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.status = Status()
        self._history = history
        self._positions = positions
        self._target = target
        self._every_rank = every_rank
        self._ending = ending
        self._begun: set[str] = set()
        self._complete: dict[int, int] = {}
        self._oldest: list[float] = []
        self._silent = False  # the target does not answer: only find what waits
        self._failing_since: float | None = None
        self._backoff = 0.0

    def poll(self) -> float:
        """Send what is new, and return the seconds for which to wait after a failure; 0 after none."""
        failures: list[SendError] = []
        try:
            connection = open_reader(self._history)
            try:
                runs = list(mirrored_runs(connection, self._positions))
                self._oldest, self._silent = [], False
                for run in [*([MACHINE] if self._target.machine else []), *runs]:
                    try:
                        self._mirror(connection, run)
                    except SendError as error:
                        failures.append(error if not run.id else _of_run(run, error))
                        self._silent |= error.retry == "soon"  # it would not answer for the others
                    except sqlite3.OperationalError:
                        raise
                    except (sqlite3.DatabaseError, ValueError) as error:  # other runs can be read
                        failures.append(_of_run(run, SendError(f"the history cannot be read: {error}", "later")))
                    if self._ending():
                        break
                self.status.oldest = min(self._oldest, default=None)
            finally:
                connection.close()
        except (sqlite3.Error, ValueError) as error:  # as on a network file system, which one process can open only
            failures.append(SendError(f"the history cannot be read: {error}", "later"))
        return self._handle_result(failures)

    def _mirror(self, connection: sqlite3.Connection, run: MirroredRun) -> None:
        for stream in streams(connection, run.id, every_rank=self._every_rank):
            # The number of pushes grows with each batch, so a stream without new ones costs one query.
            while self._complete.get(stream.id) != stream.pushes and not self._ending():
                is_complete = self._send_next(connection, run, stream)
                if self._silent:
                    break
                if is_complete:
                    self._complete[stream.id] = stream.pushes
            while self._target.histograms and run.id and not self._silent:
                if not self._send_layers(connection, run, stream):
                    break
        if run.ended is not None and not self._ending() and not self._silent:
            state = self._target.end(run, self._prepared(run))
            self._positions.finish(run.id, state, run.end)
            self._begun.discard(run.id)

    def _send_next(self, connection: sqlite3.Connection, run: MirroredRun, stream: Stream) -> bool:
        """Send the next rows of a stream, and return whether there are no more."""
        sent = self._positions.sent(stream.place)
        connection.execute("BEGIN")
        try:
            if not run.id and not sent:  # the machine's samples from before the first start of this mirror
                self._positions.advance(stream.place, totals(connection, stream), {})
                return True
            found = unsent(connection, stream, sent, 1 if self._silent else MAX_VALUES)
        finally:
            connection.execute("ROLLBACK")
        if found.oldest is not None:
            self._wait(found.oldest)
        if self._silent:
            return found.complete
        if found.rows:
            state = self._deliver(run, found.rows, self._prepared(run))
            self._positions.advance(stream.place, found.sent, state)
            self._oldest.pop()
        self.status.lost += found.lost
        return found.complete

    def _wait(self, since: float) -> None:
        """Note the Unix time of something that waits."""
        self._oldest.append(since)
        self.status.oldest = min(self._oldest)  # the target may take minutes

    def _send_layers(self, connection: sqlite3.Connection, run: MirroredRun, stream: Stream) -> bool:
        """Send the next distributions of a stream, and return whether there may be more."""
        rows, sent = unsent_layers(connection, stream, self._positions.sent(stream.place).get(LAYERS, 0))
        if rows:
            state = self._deliver(run, rows, self._prepared(run))
            self._positions.advance(stream.place, {LAYERS: sent}, state)
        return bool(rows) and not self._ending()

    def _prepared(self, run: MirroredRun) -> State:
        state = self._positions.state(run.id)
        if run.id not in self._begun:
            state = self._target.begin(run, state)
            self._begun.add(run.id)
        return state

    def _deliver(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """Send rows, and halve those that the target will never accept, until it is clear which ones these are."""
        count = sum(len(row.values) for row in rows)
        try:
            state = self._target.send(run, rows, state)
        except SendError as error:
            if error.retry != "never":
                raise
            if len(rows) > 1:
                half = len(rows) // 2
                return self._deliver(run, rows[half:], self._deliver(run, rows[:half], state))
            self.status.rejected += count
            self.status.error = str(error)
            return state
        self.status.sent += count
        self.status.success = time.time()
        return state

    def _handle_result(self, failures: list[SendError]) -> float:
        if not failures:
            self.status.error = ""
            self._failing_since = None
            self._backoff = 0.0
            return 0.0
        # Something waits at least since then, also if it is the end of a run, or nobody knows what it is.
        self._failing_since = self._failing_since or time.time()
        self.status.oldest = min(self.status.oldest or self._failing_since, self._failing_since)
        self.status.failures += 1
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        self.status.error = f"{failures[0]}{more}"
        self._begun.clear()
        longest = failures[-1].retry != "soon"  # a person must fix the cause
        self._backoff = LONGEST_SECONDS if longest else min(max(2 * self._backoff, FIRST_SECONDS), LONGEST_SECONDS)
        return self._backoff * (1 - random.random() / 2)  # noqa: S311  no secret


def _of_run(run: MirroredRun, error: SendError) -> SendError:
    """Return an error that names its run, unless the target as a whole does not answer."""
    return error if error.retry == "soon" else SendError(f"{shown(run.name)} ({shown(run.id)}): {error}", error.retry)
