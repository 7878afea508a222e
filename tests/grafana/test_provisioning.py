"""Grafana's provisioning: the data source and the dashboards, as compose and Kubernetes mount them."""

from __future__ import annotations

from typing import Any

import yaml
from processes import ROOT

from trackside_daemon.cli.commands.dashboards import ASKED_AT, PROVIDER, READ_AT, SOURCE, files

GRAFANA = ROOT / "grafana"


def read(name: object) -> Any:
    return yaml.safe_load((GRAFANA / str(name)).read_text(encoding="utf-8"))


def test_there_are_no_other_files() -> None:
    found = {str(one.relative_to(GRAFANA)) for one in (GRAFANA / "provisioning").rglob("*") if one.is_file()}
    assert found == {str(PROVIDER), str(SOURCE)}


def test_the_data_source_asks_prometheus_as_often_as_it_scrapes() -> None:
    content = read(SOURCE)
    assert content["apiVersion"] == 1
    [source] = content["datasources"]
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"][
        "scrape_interval"
    ]
    assert source == {
        "name": "Trackside",
        "uid": "trackside-prometheus",
        "type": "prometheus",
        "access": "proxy",
        "url": ASKED_AT,
        "jsonData": {"prometheusType": "Prometheus", "httpMethod": "POST", "timeInterval": scrape},
    }, "no isDefault: of two Grafana would refuse to start"


def test_the_dashboards_are_read_from_where_they_are_mounted() -> None:
    content = read(PROVIDER)
    assert content["apiVersion"] == 1
    [provider] = content["providers"]
    assert provider["options"] == {"path": READ_AT}
    assert (provider["type"], provider["allowUiUpdates"], provider["disableDeletion"]) == ("file", False, True)


def test_what_the_command_changes_of_them_stands_there_once() -> None:
    for name, old in ((PROVIDER, READ_AT), (SOURCE, ASKED_AT)):
        assert (GRAFANA / name).read_text().count(old) == 1
    [source] = yaml.safe_load(files(ROOT, "http://other:1")[SOURCE])["datasources"]
    assert source == {**read(SOURCE)["datasources"][0], "url": "http://other:1"}


def test_compose_mounts_them_there() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yml").read_text(encoding="utf-8"))
    mounts = {one.split(":")[1]: one.split(":")[0] for one in compose["services"]["grafana"]["volumes"]}
    assert mounts[READ_AT] == "../../grafana/dashboards"
    for kind in ("datasources", "dashboards"):
        assert mounts[f"/etc/grafana/provisioning/{kind}"] == f"../../grafana/provisioning/{kind}"
