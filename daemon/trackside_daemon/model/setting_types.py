"""Types of settings other than numbers and texts: durations, sizes, lists, bounded numbers."""

import re
import warnings
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from trackside_daemon.model.text import seconds, size_bytes

LEAST_BYTES = 16 * 1024**2  # minimum size of a history: its WAL alone needs 4 MiB


def bound_bytes(value: int) -> int:
    """Return a size limit of the history, which is 0 for none, or at least `LEAST_BYTES`."""
    if 0 < value < LEAST_BYTES:
        raise ValueError(f"{value} bytes are too few for a history; at least 16MiB, or 0 for no limit")
    return value


def _listed(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def pattern(value: str) -> str:
    """Return a regular expression that compiles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what a later Python may read as a nested set
            re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


def absolute(value: str) -> str:
    """Return an absolute path, with ~ expanded to the home directory."""
    try:
        path = str(Path(value).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{value!r}: {error}") from None
    if not path.startswith("/"):
        raise ValueError(f"{value!r} is not an absolute path, such as /data")
    return path


def text(value: object) -> object:
    """Return a text that YAML has read as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def setting(description: str, default: Any = ..., **more: Any) -> Any:
    """Return the field of a setting, by what the documentation says of it and its default; *more* are those of `Field`."""
    return Field(default, description=description, **more)


def bound(description: str, default: Any = ..., *, least: float = 0.0, most: float = 1e18) -> Any:
    """Return the field of a finite number within bounds."""
    return setting(description, default, ge=least, le=most, allow_inf_nan=False)


def share(description: str, default: Any = ...) -> Any:
    """Return the field of a ratio, 0 to 1."""
    return bound(description, default, most=1.0)


Seconds = Annotated[float, BeforeValidator(seconds), Field(allow_inf_nan=False, le=100 * 365 * 86400)]
Bytes = Annotated[int, BeforeValidator(size_bytes)]
HistoryBytes = Annotated[int, BeforeValidator(size_bytes), AfterValidator(bound_bytes)]
Pattern = Annotated[str, AfterValidator(pattern)]
AbsolutePath = Annotated[str, AfterValidator(absolute)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Naturals = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
AbsolutePaths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(_listed)]
