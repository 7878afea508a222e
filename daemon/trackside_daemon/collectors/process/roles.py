"""What part the processes below a rank play, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.collectors.process.process_names import Life
    from trackside_daemon.collectors.process.process_tree import Stat

WORKER = "pt_data_worker"
"""What PyTorch calls the processes of its data loader since 2.5, however they are started."""

Role = Literal["rank", "dataloader", "other"]


def role(comm: str, parent: str) -> Role:
    """The part of a process below a rank, by its name and its *parent*'s.

    What a worker starts has the worker's name until it calls exec, and what it forks keeps the name.
    """
    return "dataloader" if comm == WORKER != parent else "other"


class Roles:
    """Knows who is a worker over the ticks: who has the name in two of them, and never was a worker's child."""

    def __init__(self) -> None:
        self._named: set[Life] = set()
        self._named_before: set[Life] = set()
        self._children: set[Life] = set()
        self._children_before: set[Life] = set()

    def begin(self) -> None:
        """A tick begins: whoever was not seen in the last one is forgotten."""
        self._named_before, self._named = self._named, set()
        self._children_before, self._children = self._children, set()

    def of(self, below: Sequence[Stat]) -> list[Role | None]:
        """The parts of the processes below one rank; None of who has the name for the first time."""
        comms = {one.pid: one.comm for one in below}
        return [self._of(one, comms.get(one.parent, "")) for one in below]

    def _of(self, one: Stat, parent: str) -> Role | None:
        if parent == WORKER or one.life in self._children_before:  # also when another has taken it over since
            self._children.add(one.life)
            return "other"
        if role(one.comm, parent) == "other":
            return "other"
        self._named.add(one.life)
        return "dataloader" if one.life in self._named_before else None
