"""Transformers: each `Trainer` gets a callback as one of its default callbacks."""

from __future__ import annotations

import sys
from typing import Any

from trackside.auto.hooks import quick_import
from trackside.auto.method_wrapping import mute_within
from trackside.auto.pytorch import pause


def install(name: str) -> None:
    """Add the callback to the default callbacks; what Trainer passes on to trackers is no news then."""
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

    sys.modules[name].DEFAULT_CALLBACKS.append(AutoCallback)
    mute_within(sys.modules["transformers.trainer_callback"].CallbackHandler, "on_log")
