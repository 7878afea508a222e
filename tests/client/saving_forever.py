"""Save checkpoints without end: ``saving_forever.py DIRECTORY [NUMBER]``. It kills itself at the NUMBERth change of a file."""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from typing import Any

import trackside

CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "shutil.rmtree")
"""Audit events of Python before it creates, renames or removes something; kills between them are kills between calls."""


def main() -> None:
    directory, *number = sys.argv[1:]
    left = int(number[0]) if number else -1
    checkpoints = trackside.Checkpoints(directory, keep=2, best="loss")
    checkpoints.load()
    for step in count(checkpoints.step + 1):
        checkpoints.save({"weights": os.urandom(200_000), "step": step}, step, {"loss": 1 / step})
        if step == checkpoints.step and number and left > 0:
            sys.addaudithook(Killer(left))
            left = -1


class Killer:
    """Counts the changes of files, and kills the process at the last one."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
