"""Modules that a daemon with the default configuration does not load at its start, because it does not need them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DAEMON = """
from trackside_daemon.service.config import Config
from trackside_daemon.service.daemon import Daemon
from trackside_daemon.alerts.sinks.registry import sinks
from trackside_daemon.alerts.sinks.sink import DaemonInfo
from trackside_daemon.collectors.host.host import host_collectors
from trackside_daemon.config.loading import load
from trackside_daemon.web.dashboard import routes
from trackside_daemon.web.http.address import listen
from trackside_daemon.web.http.config_file import ConfigFile
from trackside_daemon.web.http.auth_config import Passwords
import trackside_daemon.cli.commands.daemon
config = load(Config)
sinks(config.alerts.sinks, DaemonInfo("node7"))
host_collectors(config.collector, config.path, ())
listen("127.0.0.1:0").close()
routes(), ConfigFile(""), Passwords()
"""


def loaded(script: str) -> set[str]:
    """Return the modules that a script loads."""
    script += "\nimport sys; print(*sys.modules, file=sys.stderr)"  # a worker's standard output is for answers
    done = subprocess.run([sys.executable, "-c", script], input="", capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_daemon_with_the_defaults_loads_no_library_of_a_feature_that_is_off() -> None:
    modules = loaded(DAEMON)
    assert "trackside_daemon.service.assembly" in modules
    optional = {"apprise", "bcrypt", "encodings.idna", "psutil", "textual", "yaml"}
    own = {"history.files.importing", "http_client.http_request"}
    assert not modules & {*optional, *(f"trackside_daemon.{name}" for name in own)}


@pytest.mark.parametrize(("settings", "unused"), [({}, "simulation.simulate"), ({"simulate": 1}, "readers.basic")])
def test_a_worker_loads_either_the_driver_or_the_simulation(settings: dict[str, int], unused: str) -> None:
    modules = loaded(f"from trackside_daemon.nvml.worker.__main__ import main; main([{json.dumps(settings)!r}])")
    assert "trackside_daemon.nvml.reading" in modules
    assert f"trackside_daemon.nvml.{unused}" not in modules
