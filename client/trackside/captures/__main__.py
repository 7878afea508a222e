"""Print the variables with which a training's PyTorch asks the daemon for profiles: ``eval "$(cd / && python -m trackside.captures)"``.

Nothing is printed if the daemon is another user's or on another machine, or if this Python's PyTorch is not a tested version.
"""

import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trackside.captures.kineto import (
    OTHER_DAEMON,
    TESTED,
    is_tested,
    serves_this_user,
    socket_directory,
    variables,
)
from trackside.environment.discovery import find


def main() -> None:
    """Print them, as commands of a shell, or the reason for which there are none, to standard error."""
    endpoint = find(None, os.environ)[0] or ""
    directory = socket_directory(Path(endpoint.removeprefix("ipc://"))) if endpoint.startswith("ipc:///") else None
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    if chosen := [name for name in OTHER_DAEMON if name in os.environ]:
        reason = f"{chosen[0]} is set already"
    elif not is_tested(torch):
        reason = f"PyTorch {torch or '(none)'} is left alone, because {', '.join(TESTED)} are the tested versions"
    elif directory is None or not serves_this_user(directory):
        reason = "no daemon of this user on this machine serves PyTorch"
    else:
        for name, value in variables(directory).items():
            sys.stdout.write(f"export {name}={shlex.quote(os.environ.get(name, value))}\n")
        return
    sys.stderr.write(f"trackside: {reason}\n")


if __name__ == "__main__":
    main()
