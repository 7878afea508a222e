"""Roles of the processes below a rank, by their names."""

from collections.abc import Sequence
from typing import Literal

from trackside_daemon.collectors.process.process_tree import ProcessKey, Stat

WORKER = "pt_data_worker"  # name that PyTorch 2.5 and later give to data loader workers, for every start method

Role = Literal["rank", "dataloader", "other"]


def role(comm: str, parent: str) -> Role:
    """Return the role of a process below a rank, by its name and its *parent*'s."""
    # A process that a worker starts has the worker's name until it calls exec; a forked one keeps it.
    return "dataloader" if comm == WORKER != parent else "other"


class ProcessRoles:
    """Roles over several ticks: a worker has the name in two ticks, and was never the child of a worker."""

    def __init__(self) -> None:
        self._named: set[ProcessKey] = set()
        self._named_before: set[ProcessKey] = set()
        self._children: set[ProcessKey] = set()
        self._children_before: set[ProcessKey] = set()

    def begin(self) -> None:
        """Begin a tick, and forget processes that the last tick did not see."""
        self._named_before = self._named
        self._named = set()
        self._children_before = self._children
        self._children = set()

    def of(self, below: Sequence[Stat]) -> list[Role | None]:
        """Return the roles of the processes below one rank, None for one that has the worker's name for the first time."""
        comms = {process.pid: process.comm for process in below}
        return [self._of(process, comms.get(process.parent, "")) for process in below]

    def _of(self, process: Stat, parent: str) -> Role | None:
        if parent == WORKER or process.key in self._children_before:  # also after another process became its parent
            self._children.add(process.key)
            return "other"
        if role(process.comm, parent) == "other":
            return "other"
        self._named.add(process.key)
        return "dataloader" if process.key in self._named_before else None
