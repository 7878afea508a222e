"""The systemd unit keeps secrets out of core dumps, and out of files that the daemon's user owns."""

from __future__ import annotations

import yaml
from deploy.confine import settings
from processes import ROOT

from trackside_daemon.config.loading import variables
from trackside_daemon.service.config import Config

PLACE = ROOT / "deploy" / "systemd"


def test_no_core_dump_is_written() -> None:
    assert settings(PLACE / "trackside.service")["LimitCORE"] == ["0"]
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yml").read_text(encoding="utf-8"))
    assert compose["services"]["trackside"]["ulimits"] == {"core": 0}


def test_the_example_of_credentials_sets_each_file_to_a_credential_that_it_loads() -> None:
    given = settings(PLACE / "trackside.service.d" / "credentials.conf")
    loaded = dict(line.split(":") for line in given["LoadCredential"])
    used = dict(line.split("=") for line in given["Environment"])
    assert used
    assert used.keys() <= set(variables(Config))
    assert {path.removeprefix("%d/") for path in used.values()} <= loaded.keys()
    assert all(path == f"/etc/trackside/{name}" for name, path in loaded.items())
