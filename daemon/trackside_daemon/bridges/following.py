"""Follow what other tools write while they write it, and push it to a daemon in a session for each run.

The sessions are those of the client, so that the daemon treats the values as those of a training that pushes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import trackside
from trackside.log_once import LogOnce
from trackside.totals.session_totals import Deferred
from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.foreign_run import ForeignRun, ForeignRunError
from trackside_daemon.history.files.items import Push, RunEntry

MAX_RUNS = 64  # live runs of a daemon
POLL_SECONDS = 0.25
FIND_SECONDS = 2.0  # between two searches for new files
FULL_SECONDS = 0.02

Stored = dict[str, int]
"""Number of samples of each key that the history has of a run."""


class Follower:
    """Follows the runs at some places.

    Args:
        places: Files and directories, which may not exist yet.
        environ: Environment of `find_runs`.
        stored: Returns what the history has of a run, by its id, so that nothing is pushed twice.
        warn: Receives a line about each problem.
        since: Only runs that were written at this Unix time or later.
        name: Name of the runs; empty for that of each.
        find_seconds: See `FIND_SECONDS`.
    """

    def __init__(
        self,
        places: Sequence[str],
        environ: Mapping[str, str],
        stored: Callable[[str], Stored],
        warn: Callable[[str], None],
        *,
        since: float = 0.0,
        name: str = "",
        find_seconds: float = FIND_SECONDS,
    ) -> None:
        self._places = places
        self._environ = environ
        self._stored = stored
        self._warn = warn
        self._since = since
        self._name = name
        self._find_seconds = find_seconds
        self._runs: dict[str, _FollowedRun] = {}
        self._find_at = 0.0
        self._warned = LogOnce(100)

    def poll(self, *, final: bool = False) -> int:
        """Push what is new, and return the number of samples.

        Args:
            final: Whether the files are complete: a last record that is not is then left out.
        """
        if time.monotonic() >= self._find_at:
            self._find()
            self._find_at = time.monotonic() + self._find_seconds
        pushed = 0
        for followed in self._runs.values():
            try:
                pushed += followed.poll(final=final)
            except (ForeignRunError, OSError) as error:
                self._warn_once(str(error))
        return pushed

    def close(self, status: str) -> list[str]:
        """Push the rest, end the runs, and return their names; after ``stopped``, their files may still grow."""
        self._find_at = 0.0
        self.poll(final=status != "stopped")
        for followed in self._runs.values():
            for note in followed.run.notes():
                self._warn_once(f"{followed.run.place}: {note}")
        return [followed.close(status) for followed in self._runs.values() if followed.is_open]

    def _find(self) -> None:
        for place in self._places:
            if "://" not in place and not Path(place).exists():
                continue
            try:
                found = find_runs(place, self._environ, self._warn_once)
            except (ForeignRunError, OSError) as error:
                if not Path(place).is_dir():
                    self._warn_once(str(error))
                continue
            for run in found:
                if run.id in self._runs:
                    self._runs[run.id].run.extend(run)
                elif run.modified() >= self._since:
                    self._add(run)

    def _add(self, run: ForeignRun) -> None:
        if len(self._runs) >= MAX_RUNS:
            self._warn_once(f"{run.place}: not followed, since {MAX_RUNS} runs are followed already")
        else:
            self._runs[run.id] = _FollowedRun(run, self._name or run.name, self._stored(run.id))

    def _warn_once(self, line: str) -> None:
        if self._warned.first(line):
            self._warn(line)


class _FollowedRun:
    """A run and its session, which begins with the first value."""

    def __init__(self, run: ForeignRun, name: str, stored: Stored) -> None:
        self.run = run
        self._name = name
        self._session: trackside.Run | None = None
        self._described: dict[str, object] = {}
        self._pushed = Counter(stored)
        self._skip = Counter(stored)
        self._read_at = 0.0
        self._step, self._steps = -1, dict[str, int]()  # the current one, and the last one of each key

    @property
    def is_open(self) -> bool:
        """A value was pushed, and the run has not ended."""
        return self._session is not None and self._session.is_open

    def poll(self, *, final: bool) -> int:
        """Push what is new, and return the number of samples; see `Follower.poll`."""
        if self._session is not None and not self._session.is_open:  # the tool has recorded the end of the run
            return 0
        if not self.run.live:  # a file that is read from its beginning each time
            modified = self.run.modified()
            if modified == self._read_at and not final:
                return 0
            self._read_at = modified
            self._skip = self._pushed.copy()
            self.run.left_out.clear()
        pushed = 0
        for item in self.run.read(final=final):
            if isinstance(item, RunEntry):
                if self._session is not None:
                    self._session.event(str(item.fields["kind"]), **item.fields["fields"])
                continue
            values = dict(self._new(item))
            if values:
                pushed += len(values)
                self._push(item, values)
        if self._session is not None:
            self._describe(self._session)
        return pushed

    def _describe(self, session: trackside.Run) -> None:
        """Send the configuration if it is another one, and end the session if the run has ended."""
        if self.run.config != self._described:
            self._described = dict(self.run.config)
            session.queue.describe(self._described)
        if self.run.ended:
            self.close(self.run.state)

    def close(self, status: str) -> str:
        """End the session, and return the run's name."""
        if self._session is not None:
            self._session.finish("failed" if status == "failed" else "finished" if status == "finished" else "stopped")
        self.run.close()
        return self._name

    def _new(self, push: Push) -> Iterator[tuple[str, float]]:
        """Yield the values that the history does not have."""
        for key, value in zip(push.keys, push.values, strict=True):
            if self._skip[key] > 0:
                self._skip[key] -= 1
            else:
                self._pushed[key] += 1
                yield key, value

    def _push(self, push: Push, values: dict[str, float]) -> None:
        if self._session is None:
            self._described = dict(self.run.config)
            self._session = trackside.init(self._name, id=self.run.id, config=self._described, tags=self.run.tags)
        moment = time.monotonic_ns() - (time.time_ns() - push.time * 1000)
        # Keys that go on behind the others have a count of their own, as of epochs.
        aside = max(self._steps.get(key, -1) for key in values) < push.step < self._step
        self._steps.update(dict.fromkeys(values, push.step))
        self._step = self._step if aside else push.step
        step = Deferred(push.step, tuple(values), aside=True) if aside else push.step
        while not self._session.queue.record(moment, step, values):
            time.sleep(FULL_SECONDS)
