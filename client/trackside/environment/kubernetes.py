"""Find the Kubernetes pod of this process, from the manifest's downward API or from inside the container."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_POD = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "HOSTNAME")
_NAMESPACE = ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE", "MY_POD_NAMESPACE")
_CONTAINER = ("CONTAINER_NAME", "K8S_CONTAINER_NAME")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

LONGEST = 1024  # limit of bytes that are read of that file


def pod(environ: Mapping[str, str]) -> str:
    """Return the pod's name; empty outside of Kubernetes.

    With ``hostNetwork`` the manifest must set a variable, since HOSTNAME is the node's name then.
    """
    return _first(environ, _POD)


def namespace(environ: Mapping[str, str], account: Path = ACCOUNT) -> str:
    """Return the pod's namespace, from a variable or the mounted service account; empty outside of Kubernetes.

    Raises:
        OSError: The file cannot be read, and there is no variable.
    """
    variable = _first(environ, _NAMESPACE)
    if variable or not _is_pod(environ):
        return variable
    with account.open("rb") as file:
        return file.read(LONGEST).decode(errors="replace").strip()


def container(environ: Mapping[str, str]) -> str:
    """Return the container's name, which only the manifest can provide; empty if it does not."""
    return _first(environ, _CONTAINER)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "") if _is_pod(environ) else ""


def _is_pod(environ: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environ
