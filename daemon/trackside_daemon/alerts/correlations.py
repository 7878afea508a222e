"""The ids by which other systems refer to runs, and the runs of our own commands, from the hellos of their sessions."""

from collections.abc import Sequence
from pathlib import PurePath

from trackside.wire import Hello
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import SessionOpened

MAX_RUNS = 4096  # most runs that are remembered

PROGRAMS = frozenset(("trackside", "trackside_daemon"))  # script and module of our commands
START = 4  # words of a command in which they stand: the interpreter, -m and an option may come before


class Correlations:
    """A `FindingSource` that finds nothing and remembers the ids."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._own: dict[str, None] = {}

    def accept(self, batch: Batch) -> Sequence[Finding]:
        """Remember the ids in the sessions of a batch."""
        for record in batch.records:
            if not isinstance(record, SessionOpened):
                continue
            if record.session.correlation:
                self._ids[record.session.run] = record.session.correlation
            if _is_own(record.hello):
                self._own[record.session.run] = None
            for known in (self._ids, self._own):
                if len(known) > MAX_RUNS:
                    del known[next(iter(known))]
        return ()

    def is_own(self, run: str) -> bool:
        """Return whether a run is that of one of our commands, which tells its user itself what went wrong."""
        return run in self._own

    def of(self, run: str) -> str:
        """Return the id of a run; empty for none."""
        return self._ids.get(run, "")


def _is_own(hello: Hello) -> bool:
    command = () if hello.about is None else hello.about.command[:START]
    return "benchmark" in hello.tags and any(PurePath(word).name in PROGRAMS for word in command)
