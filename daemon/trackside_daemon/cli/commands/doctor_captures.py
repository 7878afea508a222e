"""Checks of the profiles of PyTorch for `trackside doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.captures.kineto import TESTED, is_tested, serves_this_user, socket_directory
from trackside.environment import discovery
from trackside_daemon.captures.kineto.environment import torch_version
from trackside_daemon.captures.kineto.socket_file import DirectoryError, require_usable
from trackside_daemon.cli.commands.doctor_check import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAMS = ("python", "python3")
WITHOUT = "captures need the client in the training"


def check(status: Mapping[str, Any] | None) -> Iterator[Check]:
    """Check whether `trackside run` can have PyTorch itself record profiles, without code in the training."""
    version = next(filter(None, map(torch_version, PROGRAMS)), "")
    if not version:
        yield Check("ok", "profiles", "the Python in $PATH has no PyTorch")
        return
    if not is_tested(version):
        versions = ", ".join(TESTED)
        text = f"PyTorch {version} in $PATH is left alone, because {versions} are the tested versions; {WITHOUT}"
        yield Check("warn", "profiles", text)
        return
    found = discovery.find(None, os.environ)[0] or ""
    if status is None or not found.startswith("ipc://"):
        yield Check("ok", "profiles", f"PyTorch {version} in $PATH is a tested version; `trackside run` serves it")
        return
    place = socket_directory(Path(found.removeprefix("ipc://")))
    try:
        require_usable(place)
    except DirectoryError as error:
        yield Check("warn", "profiles", f"{error}; until then, {WITHOUT}")
        return
    if serves_this_user(place):
        yield Check("ok", "profiles", f"PyTorch {version} in $PATH is a tested version, and the daemon serves {place}")
    else:
        text = f"{place}: the daemon of another user, or one with capture.kineto off, serves no profiles; {WITHOUT}"
        yield Check("warn", "profiles", text)
