"""Import a library that only some need."""

from importlib import import_module
from typing import Any


def library(name: str, extra: str = "arrow") -> Any:
    """Import an optional library.

    Raises:
        ModuleNotFoundError: It is not installed; the message has the command that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        more = f" {name}" * (name in {"pandas", "polars"})  # which no extra has
        raise ModuleNotFoundError(
            f"{name} is not installed; pip install 'trackside[{extra}]'{more}", name=name
        ) from None
