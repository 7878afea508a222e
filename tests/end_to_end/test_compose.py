"""deploy/compose without an engine: its files, and its containers as processes of this machine."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from end_to_end import dockerfile
from end_to_end.listening import Listening
from end_to_end.queries import SCRAPED
from end_to_end.test_demo import Demo
from processes import DEADLINE, ROOT, Daemon, eventually, http

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = ROOT / "deploy" / "compose"
FILES = ("compose.yml", "compose.gpu.yml")
PROGRAMS = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}
LOOPBACK = "127.0.0.1:"


def services(file: str = "compose.yml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((HERE / file).read_text(encoding="utf-8"))["services"]
    return found


def mounts(service: dict[str, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield a service's files of the host: their path, their path in the container, and the mount mode."""
    for volume in service.get("volumes", ()):
        source, target, *how = volume.split(":")
        if source[0] in "./":
            yield (HERE / source).resolve(), target, "".join(how)


@pytest.mark.parametrize("file", FILES)
def test_it_agrees_with_the_specification(file: str) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(HERE / file)]
    ended = subprocess.run(checker, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("file", FILES)
def test_what_is_mounted_of_the_host_is_there_and_is_only_read(file: str) -> None:
    found = [mount for service in services(file).values() for mount in mounts(service)]
    assert found
    for source, target, how in found:
        assert source.exists(), f"{target} is {source}"
        assert how.partition(",")[0] == "ro"


def test_ports_are_of_the_loopback_and_images_have_versions() -> None:
    for name, service in services().items():
        assert service["ports"], name
        for port in service["ports"]:
            assert port.startswith(LOOPBACK), f"{name}: {port}"
        assert re.search(r":(v?\d+\.\d+\.\d+|local)$", service["image"]), name
        assert ("build" in service) == service["image"].endswith(":local")
        assert service["cap_drop"] == ["ALL"]


def test_without_a_trouble_none_is_asked_for() -> None:
    command = services()["trackside"]["command"]
    assert [flag.replace("${TROUBLE:-}", "") for flag in command if "$" in flag] == ["--trouble="]


def test_what_is_built_is_there() -> None:
    build = services()["trackside"]["build"]
    context = (HERE / build["context"]).resolve()
    assert context == ROOT
    assert context / build["dockerfile"] == dockerfile.FILE


def test_the_dashboards_are_where_the_provisioning_searches() -> None:
    grafana = services()["grafana"]
    targets = {target: source for source, target, _ in mounts(grafana)}
    providers = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/trackside.yml").read_text(encoding="utf-8"))
    for provider in providers["providers"]:
        assert targets[provider["options"]["path"]] == ROOT / "grafana" / "dashboards"
    sources = yaml.safe_load((ROOT / "grafana/provisioning/datasources/trackside.yml").read_text(encoding="utf-8"))
    assert [source["url"] for source in sources["datasources"]] == ["http://prometheus:9090"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (targets[str(home.parent)] / home.name).is_file()


def test_the_daemon_accepts_its_options_with_real_gpus(place: Path) -> None:
    service = services("compose.gpu.yml")["trackside"]
    command, *flags = service["command"]
    assert command == "daemon"
    places = {target: str(source) for source, target, _ in mounts(service)}
    here = [f"{name}={places[where]}" for name, _, where in (flag.partition("=") for flag in flags)]
    daemon = Daemon(place, *here, "--no-collector.gpu")
    assert "trackside_host_cpus" in daemon.get("/metrics").text
    assert daemon.stop() == 0


class Composed:
    """The containers as processes; each container's name is an address of this machine's loopback.

    Args:
        place: The directory for each container's files.
        place_of_demo: A short path, for the demo's sockets.
    """

    def __init__(self, place: Path, place_of_demo: Path, ends: ExitStack) -> None:
        self._place = place
        self._ends = ends
        command, *flags = services()["trackside"]["command"]
        assert command == "demo"
        self.demo = Demo(place_of_demo, *(flag.replace("${TROUBLE:-}", "nan") for flag in flags), "--after=1")
        ends.callback(self._end_demo)
        self.names = {"trackside:21790": self.demo.address().removeprefix("http://")}

    def start(self, name: str) -> Listening:
        """Start the program of a container, with its command and the files that are mounted there."""
        service = services()[name]
        root = self._place / name
        for source, target, _ in mounts(service):
            copy = root / target.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(self._here(source.read_text(encoding="utf-8")), encoding="utf-8")
        volumes = {volume.partition(":")[2] for volume in service["volumes"]} | {"/etc"}
        flags = [re.sub(rf"=({'|'.join(volumes)})\b", rf"={root}\1", flag) for flag in service["command"]]
        flags = [re.sub(r"=0\.0\.0\.0:\d+", "=127.0.0.1:0", flag) for flag in flags]
        started = Listening(PROGRAMS[name], *flags)
        self._ends.callback(started.stop)
        [port] = service["ports"]
        self.names[f"{name}:{port.rpartition(':')[2]}"] = started.url.removeprefix("http://")
        return started

    def check(self, program: str, *arguments: str) -> None:
        """Have a file of a container checked by the program that is made for it."""
        [*flags, file] = arguments
        command = [program, *flags, str(self._place / file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert ended.returncode == 0, f"{shlex.join(command)}: {ended.stdout}{ended.stderr}"

    def _here(self, text: str) -> str:
        for name, address in self.names.items():
            text = text.replace(name, address)
        return text

    def _end_demo(self) -> None:
        self.demo.process.send_signal(signal.SIGINT)
        self.demo.end()


def ask(server: Listening, path: str, **parameters: str) -> Any:
    return http.get(server.url + path, params=parameters).json()


@pytest.fixture
def composed(tmp_path: Path, place: Path) -> Iterator[Composed]:
    with ExitStack() as ends:
        yield Composed(tmp_path, place, ends)


@pytest.mark.usefixtures("only_soak")
def test_the_demo_s_series_and_alerts_come_to_both(composed: Composed) -> None:
    alertmanager = composed.start("alertmanager")
    prometheus = composed.start("prometheus")
    composed.check("amtool", "check-config", "alertmanager/etc/alertmanager/alertmanager.yml")
    composed.check("promtool", "check", "config", "prometheus/etc/prometheus/prometheus.yml")

    def count(expression: str) -> list[str]:
        found = ask(prometheus, "/api/v1/query", query=expression)["data"]["result"]
        return [one["value"][1] for one in found]

    eventually(lambda: count("count(trackside_training_loss)") == ["4"], pause=SCRAPED)
    assert count("count(trackside_gpu_info)") == ["8"]
    assert count("count(trackside_gpu_rank_info)") == ["4"]

    def firing_names() -> set[str]:
        return {one["labels"]["alertname"] for one in ask(alertmanager, "/api/v2/alerts")}

    eventually(lambda: firing_names() >= {"TracksideWatchdog", "TracksideNonFinite"}, 3 * DEADLINE, SCRAPED)
    assert ask(alertmanager, "/api/v2/receivers") == [{"name": "nobody"}]
