"""The token with which Ray's dashboard answers."""

from __future__ import annotations

import os
from collections.abc import Callable

from trackside_daemon.http_client.http_request import bearer_header

REFUSED = frozenset((401, 403))  # without a token, and with a wrong one


class RayToken:
    """The token with which a dashboard of Ray answers, where Ray itself finds it.

    Args:
        file: File with the token. Without one: ``RAY_AUTH_TOKEN``, the file ``RAY_AUTH_TOKEN_PATH``, ``~/.ray/auth_token``. Such a
            token of this user is for nobody else, so that no other user of this machine who listens at the address gets it.
        others: Returns the other users who listen at the address.
    """

    def __init__(self, file: str, others: Callable[[], list[int]]) -> None:
        self._file, self._others = file, others

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; none without a token that this listener may have.

        Raises:
            SettingError: The file cannot be used.
        """
        path, setting = self._file, "collector.ray.token-file"
        if not path:
            if self._others():
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
        if (others := self._others()) and not self._file:
            return (
                f"uid {others[0]} listens there, and gets only the token of collector.ray.token-file: set it to {which}"
            )
        return f"set collector.ray.token-file to {which}"
