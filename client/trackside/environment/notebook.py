"""Follow the cells of a notebook, or the inputs of an IPython shell."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def after_cells(callback: Callable[[], object]) -> bool:
    """Call *callback* after each cell from now on, and return whether there are any."""
    with suppress(Exception):  # no IPython, or one that only a library has imported
        # IPython passes the result to a callback with a parameter.
        sys.modules["IPython"].get_ipython().events.register("post_run_cell", lambda _: callback())
        return True
    return False
