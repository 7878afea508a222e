"""Replace the patched methods of a module after its import.

Each process with ``$TRACKSIDE_AUTO`` loads this file at its start, so it imports only what is built in: neither `typing` nor
`__future__`.
"""

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Methods = Mapping[str, Sequence[tuple[str, str]]]


class Finder:
    """Finds the modules that have patched methods as the other finders do, and adds a call after their import."""

    trackside = True

    def __init__(self, methods: "Methods") -> None:
        self._methods = methods

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the module's spec; None for all others, and if there is no such module."""
        if name not in self._methods:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._methods[name])  # type: ignore[assignment]  # as far as the import goes
        return spec


class _Loader:
    """Loads as another loader does, which the module gets in the end."""

    def __init__(self, loader: "Any", methods: "Sequence[tuple[str, str]]") -> None:
        self._loader, self._methods = loader, methods

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Return what the other loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module, and replace its methods."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        patch(module.__name__, self._methods)


def patch(name: str, methods: "Sequence[tuple[str, str]]") -> None:
    """Replace methods of a module; without trackside in this Python, stop watching."""
    collects = gc.isenabled()
    gc.disable()  # what is loaded here would begin a collection, which takes 0.1 s among PyTorch's objects
    try:
        from trackside.auto.method_wrapping import replace_methods
    except Exception:  # noqa: BLE001  trackside, or a library of its own, is missing here or broken
        unwatch()
    else:
        replace_methods(name, methods)
    finally:
        if collects:
            gc.enable()


def watch(methods: "Methods") -> None:
    """Watch the imports of this process from now on, and patch what it has imported already."""
    if not any(hasattr(finder, "trackside") for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(methods))
        for name in methods.keys() & sys.modules.keys():
            patch(name, methods[name])


def unwatch() -> None:
    """Watch the imports no longer."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "trackside")]
