"""Transformers: each `Trainer` gets a callback as one of its default callbacks."""

from __future__ import annotations

from typing import Any

from trackside.auto.hooks import quick_import
from trackside.auto.pytorch import pause


def add_callback(defaults: list[Any], hook: str) -> list[Any]:
    """Add the callback to the default callbacks."""
    with quick_import():
        from trackside.integrations.transformers import TracksideCallback

    class AutoCallback(TracksideCallback):
        """Pushes as `TracksideCallback` does, unless the Trainer has one, and leaves nothing in checkpoints."""

        is_carried = False
        yields = True

        def on_train_begin(self, *given: Any, **named: Any) -> None:
            pause(on=True)
            super().on_train_begin(*given, **named)

        def on_train_end(self, *given: Any, **named: Any) -> None:
            super().on_train_end(*given, **named)
            pause(on=False)

    defaults.append(AutoCallback)
    return defaults
