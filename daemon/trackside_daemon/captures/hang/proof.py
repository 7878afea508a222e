"""A proof that a run hangs: after the verdict, no process on which it depends does anything."""

import re
from collections.abc import Mapping
from typing import Any

import psutil

from trackside_daemon.captures.hang.verdict import hanging
from trackside_daemon.linux.job_processes import activity, busy, is_paused, with_children

# Files of Python's debuggers and prompts, whose user thinks; frames are ``FILE:LINE FUNCTION``.
_DEBUGGERS = re.compile(r"(^|/)((pdb|bdb|code)\.py:|_?(debugpy|pydevd|pudb)|IPython/terminal/embed)")


class HangProof:
    """Compares what processes have used at two moments. A rank that waits in a collective may compute, as NCCL does.

    Args:
        alert: A firing `TrainingStalled` with its evidence, as JSON.
        processes: By process id, those of the run that this process sees.

    Attributes:
        text: The verdict in one line; empty if the run may go on.
    """

    def __init__(self, alert: Mapping[str, Any], processes: Mapping[int, psutil.Process]) -> None:
        self.text = hanging(alert)
        self._held: list[psutil.Process] = []
        self._before = {}
        if not self.text:
            return
        evidence = alert["evidence"]
        hang = evidence["hang"]
        ranks = {rank: processes[pid] for rank, pid in hang.get("pids", {}).items() if pid in processes}
        known = {str(rank) for rank in (*hang["ranks"], *hang["waiting"], *hang["places"])}
        if (
            not ranks
            or hang["unseen"]
            or (known - ranks.keys() and hang["kind"] != "ended")
            or _is_debugged(evidence)
            or any(map(is_paused, with_children(list(ranks.values())).values()))
        ):
            self.text = ""
            return
        waiting = set(map(str, hang["waiting"]))
        self._held = [one for rank, one in ranks.items() if rank not in waiting]
        self._before = {pid: activity(one) for pid, one in with_children(self._held).items()}

    def holds(self, seconds: float) -> bool:
        """Return whether no process has done anything within so many seconds, which have passed since the start."""
        after = {pid: activity(one) for pid, one in with_children(self._held).items()}
        pids = self._before.keys() | after.keys()
        return bool(self.text) and not any(busy(self._before.get(pid), after.get(pid), seconds) for pid in pids)


def _is_debugged(evidence: Mapping[str, Any]) -> bool:
    """Return whether a thread is in a debugger of Python's."""
    return any(
        _DEBUGGERS.search(frame)
        for stack in evidence.get("stacks", ())
        for thread in stack.get("threads", ())
        for frame in thread.get("frames", ())
    )
