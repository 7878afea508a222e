"""The response of each path."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from wire_messages import FakeSession

from trackside_daemon.collectors.host.host import MemoryCollector
from trackside_daemon.model.metric import Batch
from trackside_daemon.web.api.daemon import GpuApi
from trackside_daemon.web.api.history import HistoryApi
from trackside_daemon.web.app import WebApp
from trackside_daemon.web.dashboard import HEADERS, StaticFile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shown(site: Any, house: Any) -> Any:
    """Return the site with a run and host memory."""
    session = FakeSession()
    house.hello(session)
    house.push(session, {"loss": 2.5})
    site.state.update(Batch("memory", MemoryCollector().collect()))
    return site


def families(client: Any, **query: Any) -> set[str]:
    response = client.get("/metrics", params={f"{name}[]": value for name, value in query.items()})
    assert response.status_code == 200
    found = text_string_to_metric_families(response.text)
    return {family.name.removeprefix("trackside_").partition("_")[0] for family in found}


def problem(response: Any, status: int) -> tuple[str, str]:
    """Return reason and message of an error response, and check its shape."""
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"reason", "message"}
    return error["reason"], error["message"]


def test_all_sources_and_the_process_itself_are_on_the_page(shown: Any) -> None:
    assert families(shown.client()) >= {"host", "training", "process", "python"}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"collect": ["cpu"]}, {"host"}),
        ({"collect": ["training"]}, {"training"}),
        ({"collect": ["training", "cpu"]}, {"training", "host"}),
        ({"collect": ["trackside"]}, {"process", "python"}),
        ({"exclude": ["trackside"]}, {"training", "host"}),
        ({"exclude": ["training", "cpu", "memory"]}, {"process", "python"}),
        ({"exclude": ["cpu", "memory", "training", "trackside"]}, set()),
    ],
)
def test_a_scrape_may_choose_its_sources(shown: Any, query: dict[str, list[str]], found: set[str]) -> None:
    assert families(shown.client(), **query) == found


def test_the_sources_that_a_scrape_did_not_choose_are_not_on_it(shown: Any) -> None:
    page = shown.client().get("/metrics", params={"exclude[]": "cpu"}).text
    assert "trackside_host_cpus" not in page
    assert "trackside_host_memory_anonymous_bytes" in page


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("collect[]=cpu&exclude[]=memory", "collect[] and exclude[] cannot be combined"),
        ("collect[]=tea", "no collector 'tea'; use one of cpu, memory, trackside, training"),
        ("collect[]=cpu&collect[]=tea", "no collector 'tea'; use one of cpu, memory, trackside, training"),
        ("exclude[]=tea", "no collector 'tea'; use one of cpu, memory, trackside, training"),
        ("collect[]=", "no collector ''; use one of cpu, memory, trackside, training"),
    ],
)
def test_a_choice_that_makes_no_sense_is_explained(client: Any, query: str, message: str) -> None:
    assert problem(client.get(f"/metrics?{query}"), 400) == ("bad_request", message)


def test_other_parameters_of_a_scrape_do_not_matter(client: Any) -> None:
    assert client.get("/metrics?target=x&collect=y").status_code == 200


@pytest.mark.parametrize(
    "path", ["/nothing", "/static/nothing.js", "/static/../app.py", "/static/%2e%2e/app.py", "/-/x"]
)
def test_an_unknown_path_is_a_404(client: Any, path: str) -> None:
    assert problem(client.get(path), 404) == ("not_found", "Not Found")


def test_a_person_with_a_mistyped_address_gets_the_page_that_explains_it(client: Any) -> None:
    response = client.get("/nope", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (response.status_code, response.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for path in ("/api/v1", "/static/nope.js", "/-/nope"):
        assert "json" in client.get(path, headers={"Accept": "text/html"}).headers["content-type"]


def test_an_unknown_path_of_the_api_is_a_404_too(site: Any) -> None:
    assert problem(site.client().get("/api/v1/nothing", headers=site.key), 404)[0] == "not_found"


def test_the_same_name_on_other_pages_removes_no_endpoint(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for pages, name in ((WebApp, "runs"), (GpuApi, "runs"), (HistoryApi, "status"), (GpuApi, "status")):
        monkeypatch.setattr(pages, name, pages, raising=False)
    client = site.client()
    assert client.get("/api/v1/runs", headers=site.key).json() == {"runs": [], "next": None}
    assert client.get("/api/v1/status", headers=site.key).json() == {"version": "1"}


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready", "/"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_wrong_method_is_answered_with_the_right_ones(site: Any, path: str, method: str) -> None:
    response = site.client().ask(method, path, headers=site.key)
    assert problem(response, 405) == ("method", "Method Not Allowed")
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD"}


def test_a_wrong_method_is_answered_with_those_of_all_endpoints_of_the_path(site: Any) -> None:
    response = site.client().ask("PUT", "/api/v1/runs/a", headers=site.key)
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
    response = site.client().ask("PUT", "/api/v1/alerts/test", headers=site.key)
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready", "/"])
def test_a_head_has_the_headers_of_a_get(client: Any, path: str) -> None:
    head, get = client.ask("HEAD", path), client.get(path)
    assert head.status_code == 200
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_it_is_healthy_as_long_as_it_answers_and_ready_with_the_first_samples(site: Any) -> None:
    site.ready = False
    client = site.client()
    assert client.get("/-/healthy").status_code == 200
    waiting = client.get("/-/ready")
    assert (waiting.status_code, waiting.text) == (503, "trackside is waiting for its first samples.\n")
    site.ready = True
    assert (client.get("/-/ready").status_code, client.get("/-/ready").text) == (200, "trackside is ready.\n")


def test_a_reload_over_http_is_off_unless_it_is_allowed(site: Any) -> None:
    reason, message = problem(site.client().ask("POST", "/-/reload", headers=site.key), 403)
    assert (reason, site.reloads) == ("lifecycle", 0)
    assert message == "reloading over HTTP is off; start with --web.enable-lifecycle, or use SIGHUP"


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_reload_that_is_allowed_reloads(site: Any, method: str) -> None:
    response = site.client(lifecycle=True).ask(method, "/-/reload", headers=site.key)
    assert (response.status_code, response.text, site.reloads) == (200, "reloaded\n", 1)


def test_a_reload_that_fails_reports_what_is_wrong(site: Any) -> None:
    site.wrong = "trackside.yml: sample.intervall: no such setting"
    assert problem(site.client(lifecycle=True).ask("POST", "/-/reload", headers=site.key), 500) == (
        "config",
        site.wrong,
    )


def test_a_reload_by_get_is_not_one(site: Any) -> None:
    problem(site.client(lifecycle=True).get("/-/reload"), 405)
    assert site.reloads == 0


@pytest.mark.parametrize(
    "path", ["/", "/runs/one", "/runs/exp/one%2Ftwo", "/compare", "/system", "/alerts", "/alerts/7", "/export"]
)
def test_every_address_of_the_dashboard_is_the_one_page_that_lets_nothing_foreign_in(client: Any, path: str) -> None:
    response = client.get(path)
    assert response.headers["Content-Type"].startswith("text/html")
    assert response.text == client.get("/").text
    assert '<main id="main"' in response.text
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "http" not in response.text


def test_what_the_dashboard_needs_comes_from_here(client: Any) -> None:
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', client.get("/").text)
    assert {"/static/app.js", "/static/style.css", "/static/uplot/uPlot.iife.min.js"} <= set(named)
    for path in named:
        response = client.get(path)
        assert response.status_code == 200, path
        assert {name: response.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("path", ["/", "/runs/one", "/static/app.js", "/static/uplot/uPlot.iife.min.js"])
def test_a_browser_gets_a_page_or_file_once_whichever_way_it_came(client: Any, path: str) -> None:
    packed, plain = client.get(path), client.get(path, headers={"Accept-Encoding": "identity"})
    assert (packed.headers["Content-Encoding"], plain.headers.get("Content-Encoding")) == ("gzip", None)
    assert packed.content == plain.content
    assert packed.headers["ETag"] == plain.headers["ETag"]
    assert packed.headers["ETag"].startswith('W/"')
    for known in (plain.headers["ETag"], f'"other", {plain.headers["ETag"]}'):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", plain.headers["ETag"])
        assert {name: again.headers[name] for name in HEADERS} == HEADERS
    assert client.get(path, headers={"If-None-Match": 'W/"other"'}).status_code == 200


def test_a_file_of_equal_size_and_time_is_another(tmp_path: Path) -> None:
    path = tmp_path / "app.js"
    asked = Request({"type": "http", "headers": []})
    tags = set()
    for text in ("let a;", "let b;"):
        path.write_text(text)
        os.utime(path, (0, 0))
        tags.add(StaticFile(path).respond(asked).headers["ETag"])
    assert len(tags) == 2
