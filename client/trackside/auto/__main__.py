"""``python -m trackside.auto train.py``: Python with the start-up module, in place of this process."""

from __future__ import annotations

import os
import sys

from trackside.auto.environment import AUTO, refusal, variables
from trackside.environment.switches import OFF

USAGE = "usage: python -m trackside.auto SCRIPT [ARGUMENT]...  (also -m MODULE, -c CODE; TRACKSIDE_AUTO=0 turns it off)"


def main() -> None:
    """Replace this process by one that runs the script."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in {"-h", "--help"}:
        sys.stdout.write(f"{USAGE}\n")
        raise SystemExit(0 if arguments else 2)
    flags = sys.orig_argv[1 : -len(sys.argv) - 1]  # what precedes -m
    if reason := refusal([*flags, *arguments]):
        sys.stderr.write(f"trackside: nothing is monitored: {reason}\n")
    is_on = os.environ.get(AUTO, "1").lower() not in OFF
    environ = {**os.environ, **variables(os.environ)} if is_on else dict(os.environ)
    os.execve(sys.executable, [sys.executable, *flags, *arguments], environ)  # noqa: S606  the user's own script


if __name__ == "__main__":
    main()
