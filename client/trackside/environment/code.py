"""Read the code that this process runs: its script, and the modules that it has imported from the same repository or folder."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from trackside.environment.git import find_repository
from trackside.environment.paths import open_regular
from trackside.environment.switches import OFF
from trackside.packing import writable
from trackside.redact import redact_code

CODE_BYTES = 64 * 1024  # limit of all files; one that does not fit is named alone
LEFT_OUT = 256  # files that do not fit, after which no more are opened, nor named
LIBRARIES = frozenset(("site-packages", "dist-packages"))


def code() -> str:
    """Return the files without secrets, each below a line ``===== PATH``; empty if there is no script, or $TRACKSIDE_CODE is off."""
    script = Path(sys.argv[0] if sys.argv else "").absolute()
    if os.environ.get("TRACKSIDE_CODE", "1").lower() in OFF or not script.is_file():
        return ""
    repository = find_repository(str(script))
    library = f"{Path(os.__file__).parent}/"  # Python's own, which may be below the script's folder
    root = f"{repository[0] if repository else script.parent}/"
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values()) if type(module) is type(sys)]
    own = {name for name in names if isinstance(name, str) and name.startswith(root) and name.endswith(".py")}
    own = {name for name in own if not (name.startswith(library) or LIBRARIES & set(name.split("/")))} - {str(script)}
    parts, left, left_out = [], CODE_BYTES, 0
    for path in (str(script), *sorted(own, key=lambda name: (name.count("/"), name))):
        name = writable(path.removeprefix(root))
        with suppress(OSError), open_regular(Path(path), links=True) as file:
            content = file.read(left + 1)
            text = redact_code(content.decode(errors="replace")) if len(content) <= left else None
            if text is None:  # also a program that is not Python
                parts.append(f"===== {name} (left out)\n")
                left_out += 1
                if left_out == LEFT_OUT:
                    break
                continue
            left -= len(content)
            parts.append(f"===== {name}\n{text.rstrip()}\n")
    return "".join(parts)
