"""Fuzz the function `check` of a test module, guided by the coverage of our code: ``python -m fuzz.engine MODULE OPTIONS``.

It is a process of its own, because libFuzzer ends the process that it runs in. The options are those of libFuzzer.
"""

from __future__ import annotations

import importlib
import logging
import sys

import atheris


def main() -> None:
    """Instrument our code, and fuzz until a limit or the first finding."""
    module = sys.argv.pop(1)
    logging.disable()  # refusals are logged
    with atheris.instrument_imports(include=["trackside", "trackside_daemon"]):
        check = importlib.import_module(module).check
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
