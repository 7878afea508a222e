"""A request that changes something needs the token, and comes from no page of another site."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import http

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon

PAGE = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}


@pytest.fixture
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    return start_daemon("--no-collector.gpu", "--web.enable-lifecycle", "--web.public-read")


def test_a_request_without_the_token_neither_reloads_nor_changes_anything(daemon: Daemon) -> None:
    key = {"Authorization": f"Bearer {(daemon.directory / 'push.token').read_text().strip()}"}

    def reason(path: str, headers: dict[str, str], method: str = "POST") -> tuple[int, str]:
        answer = http.request(method, daemon.url + path, headers=headers)
        return answer.status_code, "" if answer.is_success else answer.json()["error"]["reason"]

    writes = [("POST", "/-/reload"), ("PUT", "/-/reload"), ("POST", "/api/v1/silences"), ("DELETE", "/api/v1/runs/x")]
    for method, path in writes:
        assert reason(path, {}, method) == (401, "token")
        assert reason(path, PAGE, method) == (401, "token")
        assert reason(path, {"Authorization": "Bearer wrong"}, method) == (401, "token")
        for page in (PAGE, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            assert reason(path, {**key, **page}, method) == (403, "cross_site")
    assert not any("configuration reloaded" in line for line in daemon.log)
    assert reason("/-/reload", key) == (200, "")
    assert reason("/-/reload", {**key, "Origin": daemon.url, "Sec-Fetch-Site": "same-origin"}) == (200, "")
    assert reason("/-/reload", {**key, "Host": "rebound.example"}) == (421, "host")
