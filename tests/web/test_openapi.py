"""The OpenAPI document has the types of all answers, bodies and parameters, and requests are held to them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from processes import ROOT
from web.documented import DOCUMENT, SCHEMAS, differences
from web.test_history import refused, stored_run
from wire_messages import WALL

from trackside_daemon.web.api.endpoints import ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Site  # type: ignore[attr-defined]


def recorded() -> Iterator[tuple[Any, Any]]:
    """Yield the recorded answers of endpoints with JSON, each with its endpoint."""
    patterns = [(re.compile(re.sub(r"{\w+}", "[^/?]+", one.path) + r"(?=\?|$)"), one) for one in ENDPOINTS]
    for file in (ROOT / "tests" / "behavior" / "recorded" / "api").rglob("*.json"):
        if file.stem in {"refused", "message", "openapi"}:
            continue
        for question, answer in json.loads(file.read_text(encoding="utf-8")).items():
            method, path = question.split(" ")[:2]
            endpoint = next(one for pattern, one in patterns if one.method == method and pattern.match(path))
            if endpoint.types == ("application/json",) and set(answer) != {"status", "body"}:
                yield endpoint, answer


def test_each_recorded_answer_is_as_the_document_has_it_to_the_last_field() -> None:
    found: dict[str, str] = {}
    operations = set()
    for endpoint, answer in recorded():
        operations.add(endpoint.operation)
        content = DOCUMENT["paths"][endpoint.path]["get"]["responses"]["200"]["content"]
        found |= dict.fromkeys(differences(answer, content["application/json"]["schema"], endpoint.operation), "")
    assert list(found) == []
    assert len(operations) > 25
    assert list(differences({"run": 1}, SCHEMAS["Comparison"], ""))[:2] == [".runs is missing", ".baseline is missing"]


def test_every_operation_has_a_name_a_group_a_typed_answer_and_a_typed_body() -> None:
    operations = [(path, one) for path, methods in DOCUMENT["paths"].items() for one in methods.values()]
    names = [one["operationId"] for _, one in operations]
    assert len(set(names)) == len(names)
    assert {"get_runs", "delete_run", "end_process", "add_silence"} <= set(names)
    assert {tag for _, one in operations for tag in one["tags"]} == {one["name"] for one in DOCUMENT["tags"]}
    for path, one in operations:
        assert all("schema" in content for content in one["responses"]["200"]["content"].values()), path
        if body := one.get("requestBody"):
            assert all("schema" in content for content in body["content"].values()), path
    untyped = [
        name
        for name, one in zip(names, (one for _, one in operations), strict=True)
        if one["responses"]["200"]["content"] == {"application/json": {"schema": {}}}
    ]
    assert untyped == []
    pin = DOCUMENT["paths"]["/runs/{id}/pin"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert SCHEMAS[pin["$ref"].rpartition("/")[2]]["properties"] == {"pinned": {"type": "boolean"}}
    by_name = {one["name"]: one for one in DOCUMENT["paths"]["/runs"]["get"]["parameters"]}
    assert by_name["metric"]["schema"]["type"] == "array"
    assert by_name["limit"]["schema"]["maximum"] == 10_000
    run = next(one for one in DOCUMENT["paths"]["/series"]["get"]["parameters"] if one["name"] == "run")
    assert (run["required"], run["schema"]["minItems"]) == (True, 1)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("runs?bogus=1", "bogus: no such parameter; there are after,"),
        ("runs?metrics=loss", "metrics: no such parameter; did you mean metric?"),
        (
            "runs?state=bogus",
            "state: must be one of starting, running, stalled, finished, stopped, failed, lost, not 'bogus'",
        ),
        ("runs?since=yesterday", "since: 'yesterday' is neither a duration such as 7d"),
        ("runs?config=yes", "config: must be true or false, not 'yes'"),
        ("status?x=1", "x: no such parameter; there are none"),
        ("runs/id-1?id=other", "id: no such parameter"),
        ("machine?to=null", "to: 'null' is neither"),
    ],
)
def test_what_a_request_cannot_mean_is_refused(site: Site, question: str, reason: str) -> None:
    status, text = refused(site, question)
    assert status == 400
    assert text.startswith(reason)


def test_times_may_be_dates(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [1.0, 2.0, 3.0]})
    assert len(api("runs?since=2023-01-01T00:00:00Z&until=2100-01-01")["runs"]) == 1
    assert api("runs?until=2000-01-01")["runs"] == []
    (found,) = api("series?run=id-1&by=time&from=2023-01-01&key=loss&rank=0&rank=all")["series"]
    assert [point[1] for point in found["points"]] == [WALL, WALL + 1, WALL + 2]


def test_pages_of_runs_have_each_run_once_also_those_that_began_at_once(site: Site, api: Callable[[str], Any]) -> None:
    for number in range(5):
        stored_run(site, {"loss": [1.0]}, run=f"id-{number}")
    for query in ("", "&query=name:train"):
        pages, after = [], ""
        while True:
            page = api(f"runs?limit=2{query}{after}")
            pages.append([run["id"] for run in page["runs"]])
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert pages == [["id-4", "id-3"], ["id-2", "id-1"], ["id-0"]]
    assert refused(site, "runs?after=nobody")[0] == 404


def test_a_key_of_the_machine_that_names_several_series_is_refused_as_one(site: Site) -> None:
    from trackside_daemon.model.records import MachineSample

    stored_run(site, {"loss": [1.0]})
    watts = 'trackside_gpu_power_watts{gpu="%d"}'
    site.keep(MachineSample(WALL + 1, {watts % 0: 1.0, watts % 1: 2.0}))
    status, text = refused(site, "runs/id-1/series?key=trackside_gpu_power_watts")
    assert (status, text.partition(";")[0]) == (400, "key: 'trackside_gpu_power_watts' names 2 series")


def test_large_answers_are_compressed_for_clients_that_accept_it(site: Site, api: Callable[[str], Any]) -> None:
    stored_run(site, {"loss": [float(step) for step in range(500)]})
    client, path = site.client(), "/api/v1/runs/id-1/series?key=loss&points=0"
    answer = client.get(path, headers={**site.key, "Accept-Encoding": "gzip"})
    plain = client.get(path, headers={**site.key, "Accept-Encoding": "identity"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert answer.json() == plain.json() == api(path.removeprefix("/api/v1/"))


def test_pages_of_named_origins_may_read_and_change_nothing(site: Site) -> None:
    ours, other = "https://dash.example", "https://evil.example"
    client = site.client(origins=(ours,))
    asks = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    assert client.ask("OPTIONS", "/api/v1/runs", headers={"Origin": ours, **asks}).status_code == 200
    assert client.ask("OPTIONS", "/api/v1/runs", headers={"Origin": other, **asks}).status_code == 400
    found = client.get("/api/v1/runs", headers={**site.key, "Origin": ours})
    assert (found.status_code, found.headers["Access-Control-Allow-Origin"]) == (200, ours)
    assert (
        "Access-Control-Allow-Origin" not in client.get("/api/v1/runs", headers={**site.key, "Origin": other}).headers
    )
    assert client.get("/api/v1/runs", headers={"Origin": ours}).status_code == 401
    assert client.ask("POST", "/api/v1/gpu/resume", headers={**site.key, "Origin": ours}).status_code == 403
    assert site.client().ask("OPTIONS", "/api/v1/runs", headers={"Origin": ours, **asks}).status_code in {401, 405}
