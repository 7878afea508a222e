"""The generator of the documents, which is a script and no module."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

import typer
from processes import ROOT

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Metric

NEW_TYPER = tuple(map(int, typer.__version__.split(".")[:2])) >= (0, 29)
"""Whether typer writes help in the layout that is recorded, and gives the help of arguments."""


def generator() -> Any:
    """Import docs/generate.py as a module."""
    specification = spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def documented() -> list[Metric]:
    """Return every family of docs/metrics.md, from its generator."""
    return [metric for members in generator().sections().values() for metric in members]
