"""Binds each run to the user or the key that opened it, so that no other one can push to it.

A run belongs to the `Owner` of its first session. The hello of another owner for the same id gets a run of its own, whose id
ends with a tilde and that owner, such as ``train-7~uid:1000``. Only that owner gets an id with such an end.
"""

import os
from collections import OrderedDict
from collections.abc import Callable

from trackside.wire import WireError
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.linux.user_names import UserNames
from trackside_daemon.model.session import Owner
from trackside_daemon.model.text import cut_bytes
from trackside_daemon.training.admission import NEW_RUNS_BURST, NEW_RUNS_RATE, OwnerRate, PageLimits

MARK = "~"  # begins the end of a run's id that names its owner
MAX_RUNS = 10_000  # runs whose owner is remembered; it may take long until the history has it
NAME_SECONDS = 0.2  # how long the ingest thread waits for the name of a user; until it is known, the number is shown


class RunOwners:
    """The owners of all runs.

    Args:
        stored: Returns the id of the owner of a run in the history, by the run's id; None if there is no such run.
        spooled: Returns the user who wrote the spool of a session, if this daemon reads it.
        label_bytes: The longest id of a run, in bytes of UTF-8.

    Attributes:
        label_bytes: As given.
    """

    def __init__(
        self,
        stored: Callable[[str], str | None] = lambda _: None,
        spooled: Callable[[bytes], int | None] = lambda _: None,
        label_bytes: int = PageLimits().label_bytes,
    ) -> None:
        self._stored = stored
        self._spooled = spooled
        self.label_bytes = label_bytes
        self._names = UserNames(patience=NAME_SECONDS)
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._new_runs = OwnerRate()

    def owner(self, connection: Connection | None, session: bytes, *, late: bool, verified: bool = False) -> Owner:
        """Return the owner of a session.

        Args:
            connection: Where its hello came from; None for a spool that this daemon is about to read.
            session: Its id.
            late: The hello is from the spool of an ended process. If this daemon sends it, the owner of the spool counts.
            verified: The connection has identified the process.
        """
        uid = connection.uid if connection is not None else os.getuid()
        peer = None if connection is None else connection.peer
        if late and uid == os.getuid() and (peer is None or peer.pid == os.getpid()):
            uid = self._spooled(session)
            if uid is None:  # never the daemon's own user: others write spools, too
                return Owner()
        if uid is not None:
            return Owner(f"uid:{uid}", self._names.name(uid), verified)
        return Owner("" if connection is None else connection.owner, "" if connection is None else connection.key)

    def of_run(self, run: str) -> Owner:
        """Return the owner of a run, by its id.

        Raises:
            UnreadableError: The history cannot be read at the moment.
        """
        id_ = self._holder(run) or ""
        kind, _, name = id_.partition(":")
        return Owner(id_, self._names.name(int(name)) if kind == "uid" else name)

    def claim(self, run: str, owner: str, now: float, unowned: str = "") -> str:
        """Return the id of the run that an owner gets for the id *run*, and bind it to the owner.

        Args:
            run: The id that its hello names.
            owner: The id of the owner.
            now: Monotonic seconds.
            unowned: The run that its session belongs to, if that has no owner yet and goes on.

        Raises:
            UnreadableError: The history cannot be read at the moment.
            WireError: The owner opens new runs too fast (``rate``), or its id is too long (``owner``).
        """
        end = f"{MARK}{owner or 'unknown'}"
        holder = self._owners.get(run, owner) if run == unowned else self._holder(run)
        if holder not in {None, owner} or (holder is None and MARK in run and not run.endswith(end)):
            run = cut_bytes(run, max(0, self.label_bytes - len(end))) + end
            holder = self._holder(run)
        if holder not in {None, owner} or len(run.encode()) > self.label_bytes:
            raise WireError("owner", f"the run {run} belongs to another user")
        self._bind(run, owner, now, is_new=holder is None)
        return run

    def bind(self, run: str, owner: str, now: float) -> bool:
        """Bind a run whose id this daemon has made to its owner; return False if it is another's. Raises as `claim`."""
        holder = self._holder(run)
        if holder not in {None, owner}:
            return False
        self._bind(run, owner, now, is_new=holder is None)
        return True

    def _bind(self, run: str, owner: str, now: float, *, is_new: bool) -> None:
        if is_new and not self._new_runs.admit(owner, now):
            limits = f"more than {NEW_RUNS_BURST:g} new runs at once, or {NEW_RUNS_RATE:g} a second"
            raise WireError("rate", f"{limits}, of {owner or 'one port'}")
        self._owners[run] = owner
        self._owners.move_to_end(run)
        if len(self._owners) > MAX_RUNS:
            self._owners.popitem(last=False)

    def _holder(self, run: str) -> str | None:
        holder = self._owners.get(run)
        return self._stored(run) if holder is None else holder
