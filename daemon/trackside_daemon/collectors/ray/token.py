"""The token with which Ray's dashboard answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trackside_daemon.http_client.http_request import bearer_header
from trackside_daemon.linux.socket_address import is_of_this_machine, listeners

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = frozenset((401, 403))  # without a token, and with a wrong one


class RayToken:
    """The token with which a dashboard of Ray answers, where Ray itself finds it.

    Args:
        url: URL of the dashboard.
        file: File with the token. Without one: ``RAY_AUTH_TOKEN``, the file ``RAY_AUTH_TOKEN_PATH``, ``~/.ray/auth_token``. Such a
            token of this user is for nobody else, so that no other user of this machine who listens at the address gets it.
        proc: Path of procfs.
    """

    def __init__(self, url: str, file: str, proc: Path) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
        self._file, self._proc = file, proc

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; none without a token that this listener may have.

        Raises:
            SettingError: The file cannot be used.
        """
        path, setting = self._file, "collector.ray.token-file"
        if not path:
            if self._strangers():
                return {}
            if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
                return {"Authorization": f"Bearer {token}"}
            path = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
            setting = "RAY_AUTH_TOKEN_PATH" if path else setting
        if not path:
            path = f"{os.environ.get('HOME', '')}/.ray/auth_token"
            if not os.path.exists(path):  # noqa: PTH110  a Path would raise for a directory that may not be read
                return {}
        return {"Authorization": bearer_header(path, setting)}

    def advice(self) -> str:
        """Return what to do when the dashboard refuses the request."""
        which = "the file with the token of this Ray, such as ~/.ray/auth_token of the user who started it"
        if (strangers := self._strangers()) and not self._file:
            return f"uid {strangers[0]} listens there, and gets only the token of collector.ray.token-file: set it to {which}"
        return f"set collector.ray.token-file to {which}"

    def _strangers(self) -> list[int]:
        """Return the users, other than this one and root, who listen at the port on this machine."""
        own = (0, os.getuid())
        others = {uid for uid, _ in listeners(self._port, self._proc) if uid not in own}
        return sorted(others) if others and is_of_this_machine(self._host) else []
