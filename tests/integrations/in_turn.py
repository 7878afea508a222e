"""Scripts one after the other in one process, since most of the time of a short one is the imports.

python tests/integrations/in_turn.py FIRST.py --its=1 --then-- SECOND.py --its=2

It prints --then-- between their outputs.
"""

from __future__ import annotations

import runpy
import sys

THEN = "--then--"

if __name__ == "__main__":
    left = sys.argv[1:]
    while left:
        end = left.index(THEN) if THEN in left else len(left)
        sys.argv, left = left[:end], left[end + 1 :]
        runpy.run_path(sys.argv[0], run_name="__main__")
        if left:
            print(THEN, flush=True)  # noqa: T201
