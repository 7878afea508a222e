"""Read small YAML files of other tools, which may be hostile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.os_errors import os_error_text
from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.linux.foreign_file import open_foreign

if TYPE_CHECKING:
    from pathlib import Path


def read_yaml(path: Path, most: int) -> dict[str, Any]:
    """Return the mapping in the first *most* bytes of a file; empty if it has another value.

    Raises:
        ForeignRunError: It cannot be read, needs classes of Python, or has aliases.
    """
    import yaml

    try:
        with open_foreign(path) as file:
            text = file.read(most).decode("utf-8", "replace")
        # A few aliases of aliases can stand for more than fits into memory.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ForeignRunError(f"{path}: has aliases")
        values = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ForeignRunError(f"{path}: cannot be read: {_line(error)}") from None
    return values if isinstance(values, dict) else {}


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return os_error_text(error)
    return next(iter(str(error).splitlines()), type(error).__name__)
