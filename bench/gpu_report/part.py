"""Run one part of the report in this process, and write its result.

python -m bench.gpu_report.part parity result.json [--rehearse]
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path

from bench.gpu_report.result import Result


def main() -> None:
    """Run the part that the command line names; what it has measured before it fails or is ended is written too."""
    name, out, *options = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the time of this part is over"))
    result = Result()
    try:
        import_module(f"bench.gpu_report.{name}").measure(result, rehearse="--rehearse" in options)
    finally:
        result.write(Path(out))


if __name__ == "__main__":
    main()
