"""The process of one mirror, which sends what the history has to one target: ``python -m trackside_daemon.bridges.mirrors.worker``.

The first request is a `Start`, each further one null; each answer is the mirror's `MirrorStatus`. At the end of the input the mirror
sends what it has not sent yet, for `FLUSH_SECONDS` at most, and the process ends.
"""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NoReturn, cast

from trackside_daemon.bridges.mirrors.messages import FLUSH_SECONDS, LONGEST_SECONDS, MirrorStatus, Start
from trackside_daemon.bridges.mirrors.positions import Positions, RankKey
from trackside_daemon.bridges.mirrors.target import MirroredRun, Row, RunTarget, State, Target, make_target
from trackside_daemon.bridges.mirrors.unsent import (
    PACE_SECONDS,
    RankStream,
    mirrored_runs,
    streams,
    totals,
    unsent,
    unsent_curves,
    unsent_layers,
    unsent_media,
    waiting_media,
)
from trackside_daemon.history.database import open_reader
from trackside_daemon.history.media import index
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.linux.worker_call import serve
from trackside_daemon.model.backoff import Backoff
from trackside_daemon.model.text import shown

LAYERS = "\0distributions"  # key of the position of distributions, the id of the last row
MEDIA = -1  # attempt of the positions of media, which are the files by name
MAX_VALUES = 20_000

MEDIA_SECONDS = 600.0  # for which media that the target does not store hold up the end of their run
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
        max_values: Number of values that are read and sent at once.

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
        max_values: int = MAX_VALUES,
    ) -> None:
        self.status = MirrorStatus()
        self._history = history
        self._positions = positions
        self._target = target
        self._every_rank = every_rank
        self._ending = ending
        self._max_values = max_values
        self._begun: set[str] = set()
        self._complete: dict[int, int] = {}
        self._extras: dict[str, object] = {}  # what the curves and media of a run were when the target had all of them
        self._failing: dict[str, float] = {}  # since when the target does not store the media of a run that has ended
        self._given_up: dict[str, str] = {}  # the ends of runs without media, until the next start
        # Why storing of media gets no answer: those of others are not tried in this poll.
        self._unstored: SendError | None = None
        self._oldest: list[float] = []
        self._silent = False  # the target does not answer: only find what waits
        self._failing_since: float | None = None
        self._backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS, jitter=True)

    def poll(self) -> float:
        """Send what is new, and return the seconds for which to wait after a failure; 0 after none."""
        failures: list[SendError] = []
        try:
            connection = open_reader(self._history)
            try:
                runs = list(mirrored_runs(connection, self._positions))
                self._oldest, self._silent, self._unstored = [], False, None
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
        if run.end and self._given_up.get(run.id) == run.end:
            return
        every = streams(connection, run.id, every_rank=self._every_rank)
        for stream in every:
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
        if run.id and not self._target.machine and not self._silent:
            self._send_extras(connection, run, every)
        if run.ended is not None and not self._ending() and not self._silent:
            state = self._target.end(run, self._prepared(run))
            self._positions.finish(run.id, state, "" if run.id in self._given_up else run.end)
            self._begun.discard(run.id)

    def _send_next(self, connection: sqlite3.Connection, run: MirroredRun, stream: RankStream) -> bool:
        """Send the next rows of a stream, and return whether there are no more."""
        sent = self._positions.sent(stream.place)
        connection.execute("BEGIN")
        try:
            if not run.id and not sent:  # the machine's samples from before the first start of this mirror
                self._positions.advance(stream.place, totals(connection, stream), {})
                return True
            found = unsent(connection, stream, sent, 1 if self._silent else self._max_values)
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

    def _send_layers(self, connection: sqlite3.Connection, run: MirroredRun, stream: RankStream) -> bool:
        """Send the next distributions of a stream, and return whether there may be more."""
        rows, sent = unsent_layers(connection, stream, self._positions.sent(stream.place).get(LAYERS, 0))
        if rows:
            state = self._deliver(run, rows, self._prepared(run))
            self._positions.advance(stream.place, {LAYERS: sent}, state)
        return bool(rows) and not self._ending()

    def _send_extras(self, connection: sqlite3.Connection, run: MirroredRun, every: Sequence[RankStream]) -> None:
        """Send the curves of a run's machine and its media, of attempts whose first pushes the target has."""
        history = self._history.parent
        now = int(time.time()) // PACE_SECONDS, run.end, len(every), index.version(history, run.id)
        if self._extras.get(run.id) == now:
            return
        begun = [stream for stream in every if self._positions.sent(stream.place) or not stream.place.attempt]
        try:
            self._send_curves(connection, run, begun, every[-1].place.attempt if every else 0)
            self._send_media(history, run, begun)
        except SendError as error:
            if not error.code:
                raise
            raise SendError(str(error), "later", error.code) from None  # it answers: other runs need not wait for this
        if not self._ending():
            self._extras[run.id] = now

    def _send_curves(
        self, connection: sqlite3.Connection, run: MirroredRun, begun: Sequence[RankStream], last: int
    ) -> None:
        for stream in begun:
            while stream.lowest and not self._ending():
                sent = self._positions.sent(stream.place)
                rows, reached = unsent_curves(connection, run, stream, sent, newest=stream.place.attempt == last)
                if not reached:
                    break
                state = self._deliver(run, rows, self._prepared(run)) if rows else self._positions.state(run.id)
                self._positions.advance(stream.place, reached, state)

    def _send_media(self, history: Path, run: MirroredRun, begun: Sequence[RankStream]) -> None:
        place, places = RankKey(run.id, MEDIA, 0), [stream.place for stream in begun]
        try:
            while not self._ending() and (rows := unsent_media(history, places, self._positions.sent(place), run.id)):
                if self._unstored:
                    raise self._unstored
                state = self._deliver(run, rows, self._prepared(run))
                self._positions.advance(place, {one.item.file: 1 for row in rows for one in row.media}, state)
        except SendError as error:
            if not error.code:  # it may be the store behind the target that does not answer
                self._unstored = error
            since = self._failing.setdefault(run.id, time.monotonic()) if run.end else inf
            if time.monotonic() < since + MEDIA_SECONDS:
                raise SendError(str(error), "later", error.code) from None
            count = len(waiting_media(history, places, self._positions.sent(place), run.id))
            self._given_up[run.id] = run.end
            self.status.rejected += count
            left_out = (
                f"{count} media, for which the run's end does not wait any longer; the next start sends them: {error}"
            )
            self.status.left_out = str(_of_run(run, SendError(left_out, "never")))
        else:
            self._given_up.pop(run.id, None)
            self._failing.pop(run.id, None)

    def _prepared(self, run: MirroredRun) -> State:
        state = self._positions.state(run.id)
        if run.id not in self._begun:
            state = self._target.begin(run, state)
            self._begun.add(run.id)
        return state

    def _deliver(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """Send rows, and halve those that the target will never accept, until it is clear which ones these are."""
        count = sum(len(row.values) + len(row.media) for row in rows)
        try:
            state = self._target.send(run, rows, state)
        except SendError as error:
            if error.retry != "never":
                raise
            if len(rows) > 1:
                half = len(rows) // 2
                return self._deliver(run, rows[half:], self._deliver(run, rows[:half], state))
            self.status.rejected += count
            self.status.left_out = str(_of_run(run, error))
            return state
        refused = self._target.refused
        if refused:
            self.status.rejected += len(refused)
            self.status.left_out = str(_of_run(run, SendError(refused[-1], "never")))
        self.status.sent += count - len(refused)
        self.status.success = time.time()
        return state

    def _handle_result(self, failures: list[SendError]) -> float:
        if not failures:
            self.status.error = ""
            self._failing_since = None
            self._backoff.reset()
            return 0.0
        # Something waits at least since then, also if it is the end of a run, or nobody knows what it is.
        self._failing_since = self._failing_since or time.time()
        self.status.oldest = min(self.status.oldest or self._failing_since, self._failing_since)
        self.status.failures += 1
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        self.status.error = f"{failures[0]}{more}"
        self._begun.clear()
        return self._backoff.next_delay(longest=failures[-1].retry != "soon")


def _of_run(run: MirroredRun, error: SendError) -> SendError:
    """Return an error that names its run, unless the target as a whole does not answer."""
    return error if error.retry == "soon" else SendError(f"{shown(run.name)} ({shown(run.id)}): {error}", error.retry)


class RunMirror(Mirror):
    """A mirror of whole runs.

    Args:
        history: The history's file.
        positions: The runs that the target has.
        target: The target.
        ending: Returns True when no time is left.
    """

    def __init__(
        self, history: Path, positions: Positions, target: RunTarget, *, ending: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(history, positions, cast("Target", target), ending=ending)  # only `_mirror` sends to it
        self._files = target

    def _mirror(self, connection: sqlite3.Connection, run: MirroredRun) -> None:
        if run.ended is None or self._ending():
            return
        self._wait(run.ended)
        if self._silent:
            return
        connection.execute("BEGIN")
        try:
            # As it is in this transaction: it may have gone on, or be deleted.
            for now in mirrored_runs(connection, self._positions, run.id):
                if now.ended is not None:
                    self.status.sent += self._files.write(connection, now) or 0
                    self._positions.finish(run.id, {}, now.end)
        finally:
            connection.execute("ROLLBACK")
            self.status.lost = self._files.lost
        self._oldest.pop()
        self.status.success = time.time()


def main() -> NoReturn:
    """Mirror until the end of the input."""
    mirroring = _Mirroring()
    serve(Start | None, mirroring.answer, expected=(SettingError,))
    mirroring.end()
    os._exit(0)  # a request may hang


class _Mirroring:
    """The mirror, and the thread that runs it."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._thread = threading.Thread()
        self._mirror: Mirror | None = None
        self._deadline = inf

    def answer(self, start: Start | None) -> MirrorStatus:
        """Begin with the first request, and return the counters."""
        if start is not None:
            self._begin(start)
        return MirrorStatus() if self._mirror is None else self._mirror.status

    def end(self) -> None:
        """Send what is left."""
        self._deadline = time.monotonic() + FLUSH_SECONDS
        self._ending.set()
        if self._mirror is not None:
            self._thread.join(FLUSH_SECONDS)

    def _begin(self, start: Start) -> None:
        os.nice(10)
        target = make_target(start.name, start.settings)
        history, positions = Path(start.history), Positions(Path(start.positions))
        if isinstance(target, RunTarget):
            self._mirror = RunMirror(history, positions, target, ending=self._is_late)
        else:
            every_rank = start.settings.get("ranks", "all") == "all"
            self._mirror = Mirror(history, positions, target, every_rank=every_rank, ending=self._is_late)
        interval = start.settings["interval"]
        self._thread = threading.Thread(target=_run, args=(self._mirror, target, interval, self._ending))
        # The connection of the positions belongs to the thread that opened it.
        self._thread.start()

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def _run(mirror: Mirror, target: Target | RunTarget, interval: float, ending: threading.Event) -> None:
    try:
        while not ending.is_set():
            pause = mirror.poll()
            ending.wait(max(interval, pause))
        mirror.poll()
        target.close()
    except Exception as error:  # noqa: BLE001  the daemon reports the last line, and starts another process
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)  # else the main thread would go on to answer, as if samples were sent


if __name__ == "__main__":
    main()
