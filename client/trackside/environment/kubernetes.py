"""Where in Kubernetes this process runs, as its manifest tells by the downward API, or as can be seen from inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_POD = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "HOSTNAME")
_NAMESPACE = ("POD_NAMESPACE", "K8S_POD_NAMESPACE", "K8S_NAMESPACE", "MY_POD_NAMESPACE")
_CONTAINER = ("CONTAINER_NAME", "K8S_CONTAINER_NAME")

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LONGEST = 1024


def pod(environ: Mapping[str, str]) -> str:
    """The pod's name; empty outside of Kubernetes. With ``hostNetwork`` it must be told: HOSTNAME is the node's then."""
    return _first(environ, _POD)


def namespace(environ: Mapping[str, str], account: Path = ACCOUNT) -> str:
    """The pod's namespace, also from what is mounted with its service account; empty when nothing tells.

    Raises:
        OSError: The file cannot be read, and there is no variable.
    """
    told = _first(environ, _NAMESPACE)
    if told or not _is_pod(environ):
        return told
    with account.open("rb") as file:
        return file.read(LONGEST).decode(errors="replace").strip()


def container(environ: Mapping[str, str]) -> str:
    """The container's name in the pod, which Kubernetes tells in no other way; empty when the manifest does not say."""
    return _first(environ, _CONTAINER)


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "") if _is_pod(environ) else ""


def _is_pod(environ: Mapping[str, str]) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environ
