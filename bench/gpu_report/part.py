"""Run one part of the report in this process, and write its result.

python -m bench.gpu_report.part parity result.json [--rehearse]
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run the part that the command line names."""
    name, out, *options = sys.argv[1:]
    measure = import_module(f"bench.gpu_report.{name}").measure
    measure(rehearse="--rehearse" in options).write(Path(out))


if __name__ == "__main__":
    main()
