"""Watch the imports of this process if ``$TRACKSIDE_AUTO`` is on, then run the sitecustomize that this one hides.

Any Python that the command starts reads this file, also versions that trackside does not support. So it has the syntax of
all of them, and imports nothing.
"""

import os
import sys

if sys.version_info >= (3, 10) and os.environ.get("TRACKSIDE_AUTO", "").lower() not in ("", "0", "false", "no", "off"):
    try:
        import trackside_imports  # type: ignore[import-not-found]  # in this directory, as the next one
        import trackside_patched_methods  # type: ignore[import-not-found]

        trackside_imports.watch(trackside_patched_methods.PATCHED_METHODS)
    except Exception:  # noqa: BLE001, S110  the command must start in any case
        pass

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would take milliseconds
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]  # noqa: PTH100
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  of Debian, a virtual environment, another tool
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    if _this is not None:  # which the import of this file needs
        sys.modules.setdefault("sitecustomize", _this)
