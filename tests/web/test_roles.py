"""Roles: every route answers each user and each token by its role."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from certificate_authorities import hashed
from processes import DEADLINE
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from web.conftest import Client

from trackside_daemon.web.api.daemon import DaemonApi
from trackside_daemon.web.http.auth_config import WebConfigMiddleware
from trackside_daemon.web.http.auth_token import token_of_role
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.roles import ROLES, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from web.conftest import Site

# What needs another role than `read`, written once more here, so that a new endpoint that changes something is seen.
NEEDS = {
    "metrics": {"GET /metrics", "GET /-/healthy", "GET /-/ready", "GET /-/run/{name}/live"},
    "read": {"POST /api/v1/mcp"},
    "write": {
        "POST /api/v1/runs/{id}/about",
        "POST /api/v1/runs/{id}/annotations",
        "POST /api/v1/runs/{id}/pin",
        "POST /api/v1/runs/{id}/layers",
        "POST /api/v1/runs/{id}/captures",
        "POST /api/v1/runs/{id}/checkpoints/audit",
        "POST /api/v1/alerts/test",
        "POST /api/v1/alerts/{number}/dismiss",
        "POST /api/v1/silences",
        "DELETE /api/v1/silences/{silence}",
        "POST /api/v1/import",
    },
    "admin": {
        "DELETE /api/v1/runs/{id}",
        "POST /api/v1/gpu/pause",
        "POST /api/v1/gpu/resume",
        "POST /api/v1/processes/{pid}/end",
        "POST /api/v1/token",
        "POST /-/reload",
        "PUT /-/reload",
    },
}


def requests_of(app: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the role that each route needs, its method and a path of it; the stream is asked for no run, so that it ends."""
    for route in app.routes:
        pattern = f"{route.path}/app.js" if isinstance(route, Mount) else route.path.replace(":path", "")
        for method in sorted(getattr(route, "methods", {"GET"})):
            name = f"{method.replace('HEAD', 'GET')} {pattern}"
            found = [role for role, names in NEEDS.items() if name in names]
            assert found or method in {"GET", "HEAD"}, f"{name} has no role in this test"
            path = re.sub(r"{\w+}", "7", pattern)
            yield (found or ["read"])[0], method, path + ("?run=none" if path.endswith("/stream") else "")


def app_of(client: Any) -> Any:
    app = client.transport.app
    while not hasattr(app, "routes"):
        app = app.app
    return app


@pytest.fixture
def walk(site: Any, tmp_path: Path) -> Any:
    """Return a function that asks every route with a role, as a user or with its token; it yields the refused requests."""
    lines = [f"  {role}: {hashed(role)}\n" for role in ROLES]
    file = tmp_path / "web.yml"
    file.write_text(
        f"basic_auth_users:\n{''.join(lines)}basic_auth_roles: {{{', '.join(f'{r}: {r}' for r in ROLES)}}}\n"
    )

    def asked(role: Role, *, user: bool) -> tuple[set[str], set[str]]:
        client = site.client(lifecycle=True)
        wanted = {
            f"{method} {path}"
            for needed, method, path in requests_of(app_of(client))
            if ROLES.index(needed) > ROLES.index(role)
        }
        gate = Client(WebConfigMiddleware(client.transport.app, ConfigFile(str(file)))) if user else client
        refused = set()
        for _, method, path in requests_of(app_of(client)):
            bearer = {"Authorization": f"Bearer {token_of_role(site.token.value, role)}"}
            answer = gate.ask(method, path, **({"auth": (role, role)} if user else {"headers": bearer}))
            if answer.status_code == 403 and (method == "HEAD" or answer.json()["error"]["reason"] == "role"):
                refused.add(f"{method} {path}")
            assert answer.status_code != 401, path
            assert (
                answer.headers.get("x-trackside-role", role) == role
            )  # by which the dashboard hides what it may not do
        return refused, wanted

    return asked


@pytest.mark.parametrize("role", ROLES)
def test_a_user_reaches_exactly_the_routes_of_the_role(walk: Any, role: str) -> None:
    refused, wanted = walk(role, user=True)
    assert refused == wanted


@pytest.mark.parametrize("role", ROLES)
def test_a_token_reaches_exactly_the_routes_of_its_role(walk: Any, role: str) -> None:
    refused, wanted = walk(role, user=False)
    # What is open without a token, such as the files of the dashboard, is open with every token.
    assert refused == {one for one in wanted if "/api/" in one or "reload" in one}


def test_the_refusal_names_both_roles(site: Any) -> None:
    token = token_of_role(site.token.value, "read")
    answer = site.client().ask("DELETE", "/api/v1/runs/x", headers={"Authorization": f"Bearer {token}"})
    assert answer.json()["error"] == {
        "reason": "role",
        "message": "DELETE /api/v1/runs/x needs the role admin, and yours is read",
    }


def test_a_user_without_a_role_beside_others_may_only_scrape(site: Any, tmp_path: Path) -> None:
    users = f"basic_auth_users: {{ada: '{hashed('a')}', eve: '{hashed('e')}'}}\n"
    (tmp_path / "web.yml").write_text(users + "basic_auth_roles: {ada: admin}\n")
    client = Client(WebConfigMiddleware(site.client().transport.app, ConfigFile(str(tmp_path / "web.yml"))))
    assert [client.get(path, auth=("eve", "e")).status_code for path in ("/metrics", "/")] == [200, 403]
    assert client.get("/", auth=("ada", "a")).status_code == 200


def test_an_agent_that_may_only_read_gets_no_tool_that_acts(site: Any) -> None:
    site.agent_actions = True
    names: dict[Role, set[str]] = {}
    roles: tuple[Role, ...] = ("read", "write")
    for role in roles:
        answer = site.client().ask(
            "POST",
            "/api/v1/mcp?allow-actions=true",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
            headers={"Authorization": f"Bearer {token_of_role(site.token.value, role)}"},
        )
        names[role] = {tool["name"] for tool in answer.json()["result"]["tools"]}
    assert names["write"] - names["read"] == {"capture"}


def test_what_an_old_token_has_opened_ends_when_its_time_is_over(site: Site) -> None:
    async def rotate() -> None:
        ended = asyncio.Event()
        daemon = DaemonApi(dict, site.token, ended.set, lambda _: {})
        app = Starlette(routes=[Route("/token", daemon.rotate_token, methods=["POST"])])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            assert (await client.post("/token", json={"keep": 0.1})).status_code == 200
        assert not ended.is_set()
        await asyncio.wait_for(ended.wait(), DEADLINE)

    asyncio.run(rotate())


def test_an_old_token_that_is_kept_opens_the_api_until_its_time_is_over_also_after_a_restart(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, old = site.client(), site.token.value
    answer = client.ask("POST", "/api/v1/token", headers={"Authorization": f"Bearer {old}"}, json={"keep": 3600})
    restarted = type(site.token)(site.token.path, site.token._stored)
    for token in (site.token, restarted):
        assert token.role(f"Bearer {answer.json()['token']}") == "admin"
        assert token.role(f"Bearer {old}") == "admin"
        assert token.role(f"Bearer {token_of_role(old, 'read')}") == "read"
    now = time.time()
    monkeypatch.setattr("trackside_daemon.web.http.auth_token.time.time", lambda: now + 3601)
    assert restarted.role(f"Bearer {old}") is None
    assert restarted.role(f"Bearer {answer.json()['token']}") == "admin"


def test_no_route_but_the_import_reads_a_body_without_an_end(site: Any) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(65_536)
        pytest.fail(f"{method} {path} has read 4 MiB")

    client, answers = site.client(lifecycle=True), dict[str, int]()
    for _, method, path in requests_of(app_of(client)):
        if method in {"POST", "PUT"} and not path.endswith("/import"):
            answers[path] = client.ask(method, path, headers=site.key, content=endless()).status_code
    assert answers["/api/v1/runs/7/pin"] == answers["/api/v1/silences"] == answers["/api/v1/mcp"] == 400
