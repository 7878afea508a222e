"""The ``TRACKSIDE_*`` environment variables: those of settings, and those that others own."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

from trackside_daemon.config.names import setting_paths
from trackside_daemon.config.near import near_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

PREFIX = "TRACKSIDE_"
# Variables of the client; if they are set for a whole job, the daemon's environment has them too.
CLIENT_VARIABLES = frozenset(
    PREFIX + name
    for name in ("RUN_ID", "RUN_NAME", "TAGS", "DISABLED", "ENDPOINT", "SPOOL", "FLUSH_TIMEOUT", "KEY_FILE", "LAUNCH")
)

# Kubernetes sets these for a service that is called trackside.
_KUBERNETES = re.compile(PREFIX + r"(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)$")

log = logging.getLogger("trackside")


def variables(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return the path of every setting by its environment variable."""
    return {variable(path): path for path in setting_paths(model)}


def variable(path: tuple[str, ...]) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + "__".join(path).upper()


def warn_of_unknown_variables(model: type[BaseModel], others: Iterable[str] = ()) -> None:
    """Log the ``TRACKSIDE_*`` variables that are neither a setting, nor the client's, nor set by Kubernetes.

    Args:
        model: The whole configuration.
        others: Variables that the daemon or our commands read without a setting.
    """
    valid = [*variables(model), *others, *CLIENT_VARIABLES]
    unknown = [
        f"{name} is not a setting and is ignored{near_name(name, valid)}"
        for name in sorted(os.environ)
        if name.startswith(PREFIX) and name not in valid and not _KUBERNETES.match(name)
    ]
    if unknown:
        log.warning("%s", ", and ".join(unknown))
