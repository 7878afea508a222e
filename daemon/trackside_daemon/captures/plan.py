"""Profiles that a run or the configuration has planned: some steps after epochs have begun."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from trackside_daemon.captures.captures import CaptureError, Request
from trackside_daemon.model.capture import ProfileOptions
from trackside_daemon.model.families.training import KNOWN, STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trackside.wire import ProfilePlan
    from trackside_daemon.model.capture import Capture
    from trackside_daemon.model.rank_process import RankProcess
    from trackside_daemon.model.state import State

NOTED = 1024  # most runs whose plan the log names

log = logging.getLogger("trackside")


class PlannedCaptures:
    """Begins the profiles that are due, at each tick. The lowest rank of this machine decides for its run.

    Args:
        ask: Begins a capture.
        processes: Returns the training processes of this machine.
        state: The newest values.
        default: The plan of runs without one of their own; None for none.
        of_others: Follow the plans of other users' runs as well.
    """

    def __init__(
        self,
        ask: Callable[[Request], Capture],
        processes: Callable[[], Iterable[RankProcess]],
        state: State,
        default: ProfilePlan | None,
        *,
        of_others: bool = False,
    ) -> None:
        self._ask = ask
        self._processes = processes
        self._state = state
        self._default = default
        self._of_others = of_others
        self._refused: set[str] = set()
        # Steps when an epoch of the plan had begun, by run, attempt and epoch; None once it has been profiled or missed.
        self._begun: dict[tuple[str, int], dict[int, float | None]] = {}

    def tick(self) -> None:
        """Begin what is due."""
        first: dict[tuple[str, int], RankProcess] = {}
        for process in self._processes():
            key = process.run_id, process.attempt
            if key not in first or process.rank < first[key].rank:
                first[key] = process
        self._begun = {key: self._begun.get(key, {}) for key in first}
        for key, process in first.items():
            plan = self._plan(process)
            if plan is not None and self._is_due(plan, process, self._begun[key]):
                options = ProfileOptions(plan.steps, None, plan.shapes, plan.stacks, plan.memory)
                try:
                    self._ask(Request(process.run_id, process.attempt, trigger="plan", options=options))
                except CaptureError as error:
                    log.info("run %s is not profiled as planned: %s", process.run, error)

    def _plan(self, process: RankProcess) -> ProfilePlan | None:
        """Return the plan of a run: its own, since a profile costs this daemon's memory, only of this daemon's own user."""
        if process.plan is None or self._of_others or process.owner == f"uid:{os.getuid()}":
            return process.plan or self._default
        if process.run_id not in self._refused and len(self._refused) < NOTED:
            self._refused.add(process.run_id)
            log.info(
                "run %s is not profiled as it plans: it is of another user; capture.plans: all allows that", process.run
            )
        return self._default

    def _is_due(self, plan: ProfilePlan, process: RankProcess, begun: dict[int, float | None]) -> bool:
        labels = process.run, str(process.rank)
        steps, epoch = self._state.some(time.monotonic(), [(STEPS, labels), (KNOWN["epoch"], labels)])
        if not isinstance(steps, float | int):
            return False
        if not plan.epochs:
            begun.setdefault(0, 0.0)
        elif isinstance(epoch, float | int):
            for planned in plan.epochs:
                if epoch >= planned:
                    begun.setdefault(planned, None if epoch >= planned + 1 else steps)
        due = [planned for planned, at in begun.items() if at is not None and steps >= at + plan.warmup]
        begun.update(dict.fromkeys(due))
        return bool(due)
