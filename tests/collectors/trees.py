"""Processes as files below a directory, as /proc has them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.rank_process import RankProcess

if TYPE_CHECKING:
    from pathlib import Path

FIRST = 4_200_000
"""A pid that no process of a real machine has: the kernel's end at 4194304."""

STATUS = """Name:	{comm}
State:	{state} (sleeping)
VmHWM:	    3000 kB
VmRSS:	    2000 kB
RssAnon:	    1000 kB
RssFile:	     600 kB
RssShmem:	     400 kB
VmSwap:	      16 kB
Threads:	{threads}
voluntary_ctxt_switches:	70
nonvoluntary_ctxt_switches:	7
"""
IO = """rchar: 5000
wchar: 4000
syscr: 30
syscw: 20
read_bytes: {read}
write_bytes: 8192
cancelled_write_bytes: 0
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             192730               192730               processes
Max open files            {files:<20} 1048576              files
"""


class Proc:
    """A directory like /proc.

    Args:
        place: The path of the directory.
        lists: True if its kernel lists the children of threads.
    """

    def __init__(self, place: Path, *, lists: bool = True) -> None:
        self.place = place
        self._lists = lists
        place.mkdir(exist_ok=True)
        (place / "stat").write_text("cpu  0 0 0 0 0 0 0 0 0 0\nbtime 1760000000\nprocesses 1\n")
        (place / "vmstat").write_text("nr_free_pages 1\noom_kill 3\npgfault 2\n")
        if lists:
            (place / "thread-self").mkdir()
            (place / "thread-self" / "children").write_text("")

    def run(self, pid: int, parent: int = 1, *, thread: int = 0, **more: Any) -> None:
        """Add or change a process; a *thread* of its parent has started it, by default the main thread."""
        about = {"comm": "python3", "state": "S", "start": 500, "user": 300, "system": 100, "threads": 1, "read": 4096}
        about |= {"resident": 1000, "shared": 400, "files": 1024, **more}
        place = self.place / str(pid)
        (place / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        numbers = ["0"] * 50
        fields = {0: "state", 11: "user", 12: "system", 17: "threads", 19: "start", 21: "resident"}
        for index, name in fields.items():
            numbers[index] = str(about[name])
        numbers[1], numbers[9] = str(parent), "6"
        (place / "stat").write_text(f"{pid} ({about['comm']}) {' '.join(numbers)}\n")
        (place / "statm").write_text(f"9000 {about['resident']} {about['shared']} 1 0 800 0\n")
        (place / "status").write_text(STATUS.format(**about))
        (place / "io").write_text(IO.format(**about))
        (place / "schedstat").write_text("900 2500000000 40\n")
        (place / "limits").write_text(LIMITS.format(**about))
        (place / "fd").mkdir(exist_ok=True)
        for number in range(3):
            (place / "fd" / str(number)).touch()
        if self._lists:
            (place / "task" / str(pid) / "children").touch()
            if (self.place / str(parent)).exists():
                self._list(pid, parent, thread or parent)

    def end(self, pid: int) -> None:
        """Remove a process; a list of children may still contain it."""
        shutil.rmtree(self.place / str(pid))

    def _list(self, pid: int, parent: int, thread: int) -> None:
        children = self.place / str(parent) / "task" / str(thread) / "children"
        children.parent.mkdir(exist_ok=True)
        there = children.read_text().split() if children.exists() else []
        children.write_text(" ".join(dict.fromkeys([*there, str(pid)])) + " ")


def member(pid: int, rank: int = 0, **more: Any) -> RankProcess:
    """Return a process that trains."""
    return RankProcess("char-model", "id-7", 0, rank, rank, "815", pid)._replace(**more)
