"""Call `trackside.auto.hooks.imported` after the import of the modules that trackside has hooks for.

Each process with ``$TRACKSIDE_AUTO`` loads this file at its start, so it imports nothing: not even `typing`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

INSTALLERS = {
    "accelerate.accelerator": "trackside.auto.accelerate",
    "aim.sdk.run": "trackside.auto.trackers",
    "lightning.pytorch.trainer.trainer": "trackside.auto.lightning",
    "mlflow.tracking.client": "trackside.auto.trackers",
    "pytorch_lightning.trainer.trainer": "trackside.auto.lightning",
    "swanlab": "trackside.auto.trackers",
    "swanlab.sdk.internal.run": "trackside.auto.trackers",
    "tensorboardX.writer": "trackside.auto.trackers",
    "torch": "trackside.auto.pytorch",
    "torch._dynamo.trace_rules": "trackside.auto.pytorch",
    "torch.distributed.fsdp.sharded_grad_scaler": "trackside.auto.pytorch",
    "torch.utils.tensorboard.writer": "trackside.auto.trackers",
    "trackio": "trackside.auto.trackers",
    "trackio.run": "trackside.auto.trackers",
    "transformers.trainer": "trackside.auto.transformers",
    "wandb.sdk.wandb_init": "trackside.auto.trackers",
    "wandb.sdk.wandb_run": "trackside.auto.trackers",
}
"""By module, the one whose function `install` gets it after its import."""


class Finder:
    """Finds the modules of `INSTALLERS` as the other finders do, and adds a call after their import."""

    trackside = True

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec; None for all others, and if there is no such module."""
        if name not in INSTALLERS:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # as far as the import goes
        return spec


class _Loader:
    """Loads as another loader does, which the module gets in the end."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the other loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, and call its hooks."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        call_hooks(module.__name__)


def call_hooks(name: str) -> None:
    """Call the hooks of a module; without trackside in this Python, stop watching."""
    try:
        from trackside.auto.hooks import imported
    except Exception:  # noqa: BLE001  trackside, or a library of its own, is missing here or broken
        unwatch()
    else:
        imported(name, INSTALLERS[name])


def watch() -> None:
    """Watch the imports of this process from now on, and call the hooks of what it has imported already."""
    if not any(hasattr(finder, "trackside") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
        for name in INSTALLERS.keys() & sys.modules.keys():
            call_hooks(name)


def unwatch() -> None:
    """Watch the imports no longer."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "trackside")]
