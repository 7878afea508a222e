"""Print where a run is shown, on the terminal of the training."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trackside.environment.switches import OFF
from trackside.patterns import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.wire import Identity

VARIABLE = "TRACKSIDE_PRINT_LINK"
_ADDRESS = pattern(r"https?://(?:[\w.-]+|\[[0-9a-f:.]+\]):\d{1,5}", re.ASCII)
_TOKEN = pattern(r"[\w-]{1,100}", re.ASCII)
_BYTES = 4096


def announce(identity: Identity, endpoint: str, environ: Mapping[str, str] = os.environ) -> None:
    """Print the run's name and its page, once it is known which daemon accepts its pushes.

    The link has the daemon's token. So it is printed only where a person reads it: on a terminal, by rank 0, unless
    ``$TRACKSIDE_PRINT_LINK`` is 0. A daemon on another machine, or one that this user may not query, has no link.
    """
    # Whatever stands in the place of standard error may raise anything.
    with suppress(Exception):
        if identity.rank or environ.get(VARIABLE, "1").lower() in OFF or not sys.stderr.isatty():
            return
        if link := link_of(identity.run, endpoint):
            line = f"trackside: {short_name(identity)} {link}\n"
            # Not through the stream, whose lock the training may need while a terminal is stopped.
            os.write(sys.stderr.fileno(), line.encode())


def short_name(identity: Identity) -> str:
    """Return the name of a run with the end of its id, which tells runs of the same name apart: ``train-7f3a``."""
    name = "".join(character if character.isprintable() else "?" for character in identity.name)
    return f"{name}-{re.sub('[^0-9A-Za-z]', '', identity.run)[-4:].lower()}".rstrip("-")


def link_of(run: str, endpoint: str) -> str:
    """Return the page of a run on the daemon of a push endpoint; empty if it has none that this user may read."""
    socket = Path(endpoint.removeprefix("ipc://"))
    if not endpoint.startswith("ipc://"):
        return ""
    address, token = (_read(socket.with_suffix(suffix)) for suffix in (".address", ".token"))
    if not _ADDRESS.fullmatch(address) or not _TOKEN.fullmatch(token):
        return ""
    from urllib.parse import quote  # 2 ms that a training without a terminal is spared

    return f"{connectable(address)}/runs/{quote(run, safe='')}#token={token}"


def connectable(address: str) -> str:
    """Return the address to connect to by the one that a daemon listens on, which may be all addresses of the machine."""
    return address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _read(path: Path) -> str:
    try:
        # O_NONBLOCK: a FIFO would block this thread.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
