"""The list of the targets: add a line here and one in `settings` for a new one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.bridges.mirrors.target import RunTarget, Target

TARGETS = ("tensorboard", "mlflow", "wandb", "otlp", "parquet")


def make_target(name: str, settings: dict[str, Any]) -> Target | RunTarget:
    """Return a target.

    Args:
        name: One of `TARGETS`; its module ``mirror`` has a function ``make_target``.
        settings: Its section of the configuration.

    Raises:
        SettingError: A setting cannot be used, or a library is not installed.
    """
    # Only the module of the target is imported, since some need large libraries.
    module = import_module(f"trackside_daemon.bridges.{name}.mirror")
    return cast("Callable[[dict[str, Any]], Target | RunTarget]", module.make_target)(settings)
