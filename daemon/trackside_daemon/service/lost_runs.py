"""The ends of runs that ended while no daemon was running."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from trackside.wire import Identity
from trackside_daemon.history.directory import UnreadableError
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.orphaned_spools import OrphanedSpools
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import RunState
from trackside_daemon.training.end_state import UNKNOWN
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.rank import End
from trackside_daemon.training.runs import Runs

# A run of an earlier daemon that has not come back by then is lost, unless its process is alive on this machine.
RETURN_SECONDS = 60.0

# By so long after the spools are read, live clients have returned, so that the alerts that still fire are right.
JUDGED_SECONDS = 5.0


class LostRuns:
    """Ends the runs of an earlier daemon that do not continue.

    Args:
        history: The history, which has the runs.
        runs: The runs of this daemon; *owners* has who owns them.
        sessions: The protocol with the clients.
        spools: Spools of processes that are gone.
        requests: Requests to ingest, whose thread alone changes runs once it has started.
        liveness: Finds processes.
        judge: Called once live clients have returned.
    """

    def __init__(
        self,
        history: HistoryRecorder,
        runs: Runs,
        owners: RunOwners,
        sessions: ClientSessions,
        spools: OrphanedSpools,
        *,
        requests: IngestRequests,
        liveness: Liveness,
        judge: Callable[[], None],
    ) -> None:
        self._history, self._runs, self._owners, self._sessions = history, runs, owners, sessions
        self._spools, self._requests, self._liveness, self._judge = spools, requests, liveness, judge
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trackside-forget", daemon=True)

    def end_missed(self, accept: Callable[[Batch], None]) -> None:
        """End the runs of processes that are gone, except those whose spool may report their end.

        Call it before ingest starts; *accept* handles a batch in the calling thread.
        """
        spooled, now = self._spools.hellos(), Moment.now()
        with suppress(UnreadableError):
            for batch in self._lose(self._history.abandon(self._is_gone, spooled), now):
                accept(batch)
            for batch in self._sessions.open_spooled(spooled, now):
                accept(batch)

    def start(self) -> None:
        """End the others: at once if the process is gone and has left no bye in a spool, else after `RETURN_SECONDS`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        self._spools.wait(RETURN_SECONDS)
        self._change(self._is_gone)
        if not self._stopping.wait(JUDGED_SECONDS):
            self._judge()
        while not self._stopping.wait(RETURN_SECONDS):
            self._change(lambda process: self._liveness.is_gone(process) is not False)

    def _change(self, lost: Callable[[Identity], bool]) -> None:
        self._requests.change(partial(self._lose, self._history.abandon(lost)))

    def _lose(self, processes: Sequence[tuple[Identity, float]], now: Moment) -> list[Batch]:
        """Return the batches with the ends of processes of abandoned attempts; each with the time of its last push."""
        batches = []
        with suppress(UnreadableError):
            # The detectors may have restored the alerts of these. A run that has come back meanwhile is none of them.
            ends = {(one.run, one.attempt): at for one, at in processes}
            lost = [RunState(*of, "lost", "", at) for of, at in ends.items() if self._runs.has_ended(of[0])]
            batches.append(Batch("training", records=lost))
            for process, ended in processes:
                end, owner = End("lost", UNKNOWN, ended), self._owners.of_run(process.run)
                batches += self._runs.missed(process, process.attempt, end, owner, now)
        return batches

    def _is_gone(self, process: Identity) -> bool:
        return self._liveness.is_gone(process) is True
