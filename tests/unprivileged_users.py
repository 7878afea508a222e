"""Other users for tests that root runs.

They have to be able to run this Python: where it, or the project, lies behind a directory that is closed to them, such as
/root, they get it in a mount namespace of their own.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from processes import ROOT


def launcher(user: int, *groups: int, capability: str = "") -> list[str]:
    """Return the beginning of a command that runs the rest as *user*, in the group *user* and in *groups*.

    It works even if Python lies in a directory that is closed to others. *capability* is the only one that the user has.
    """
    needed = sorted({ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})
    closed = {closed_at: None for path in needed if (closed_at := _closed(path)) is not None}
    numbers = [
        f"--reuid={user}",
        f"--regid={user}",
        f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups",
    ]
    if capability:
        numbers += [f"--{one}=-all,+{capability}" for one in ("inh-caps", "ambient-caps", "bounding-set")]
    switch = ["setpriv", *numbers, "--"]
    if not closed:
        return switch
    behind = [path for path in needed if _closed(path) is not None]
    steps = ["set -e"]
    steps += [f"exec {number}<{shlex.quote(str(path))}" for number, path in enumerate(behind, 3)]
    steps += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(path))}" for path in closed]
    for number, path in enumerate(behind, 3):
        quoted = shlex.quote(str(path))
        steps.append(f"mkdir -p {quoted}; mount --no-canonicalize --bind /proc/self/fd/{number} {quoted}")
    steps += ['cd "$PWD"', f'exec {shlex.join(switch)} "$@"']
    return ["unshare", "--mount", "sh", "-c", "\n".join(steps), "sh"]


def _closed(path: Path) -> Path | None:
    """Return the first directory on the way to *path* that is closed to others."""
    way = [*reversed(path.parents), path]
    return next((one for one in way if not one.stat().st_mode & 0o001), None)
