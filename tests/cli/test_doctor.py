"""`trackside doctor`: each problem is reported with its remedy."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from certificate_authorities import Authority
from processes import LEAN, eventually, run_here

from trackside_daemon import __version__
from trackside_daemon.cli.commands.doctor import _about, _notifications, _spool, _storage
from trackside_daemon.cli.commands.doctor_gpu import check
from trackside_daemon.cli.sources import daemon_lookup
from trackside_daemon.nvml.readers.unsupported import WHY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nvml.fake.library import Scenario
    from processes import Daemon

    from trackside_daemon.cli.commands.doctor_gpu import Check

SEE = "check dmesg for NVRM and Xid, and whether nvidia-smi works"
DRIVER = {"driver_version": "580.95", "nvml_version": "13.580.95", "cuda_version": "13.0"}
WELL = {**DRIVER, "visible": 2, "expected": 2, "pci": 2, "error": "", "absent": False, "paused_until": None}
NO_DRIVER = "libnvidia-ml.so.1 not found; install the NVIDIA driver"


def gpu(
    index: int, refused: dict[str, str] | None = None, *, up: bool = True, name: str = "NVIDIA H100"
) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "name": name, "up": up, "refused": refused or {}}


def report_of(nvml: dict[str, Any] | None, *gpus: dict[str, Any]) -> list[str]:
    return seen({"version": __version__, "nvml": nvml, "gpus": list(gpus)})


def seen(status: dict[str, Any], check: Callable[[dict[str, Any]], Iterator[Check]] = check) -> list[str]:
    return [f"{one.level} {one.about}: {one.text}" for one in check(status)]


def run(place: Path, **environ: str) -> tuple[int, list[str]]:
    """Return exit status and lines of the doctor on a machine whose only daemon is that of the directory.

    $PATH has no Python whose PyTorch the doctor would ask for: that costs more than all else.
    """
    given = {"TRACKSIDE_ENDPOINT": f"ipc://{place}/push.sock", "TRACKSIDE_COLLECTOR__GPU__SIMULATE": "2", "PATH": ""}
    done = run_here("doctor", environ={**given, **environ})
    assert done.stderr == ""
    return done.returncode, [line for line in done.stdout.splitlines() if " profiles:" not in line]


@pytest.mark.parametrize(("grave", "level"), [(True, "FAIL"), (False, "warn")])
def test_a_gpu_that_answers_and_is_sick_is_named(grave: bool, level: str) -> None:
    hot = {"what": "its clocks are kept down by hw_thermal", "grave": False}
    sick = {**gpu(1), "ailments": [*([{"what": "Xid 94, 2 since the daemon began", "grave": True}] * grave), hot]}
    lines = report_of(WELL, gpu(0), sick)
    why = "Xid 94, 2 since the daemon began; " * grave
    assert f"{level} gpu 1: NVIDIA H100 GPU-1: {why}its clocks are kept down by hw_thermal" in lines
    assert "ok gpu 0 and 1: NVIDIA H100: all requested families are measured" in lines


def test_all_is_well_beside_a_daemon(start_daemon: Callable[..., Daemon], place: Path, spool: Path) -> None:
    daemon = start_daemon("--collector.gpu.simulate=3", "--sample.interval=250ms", *LEAN)
    eventually(lambda: daemon.api("status").json()["gpus"])
    status, lines = run(place, TRACKSIDE_COLLECTOR__GPU__SIMULATE="0")
    assert status == 0
    assert [line.partition(":")[0] for line in lines] == [
        *("ok   daemon", "ok   push", "ok   spool", "ok   storage", "warn notifications"),
        *("ok   driver", "ok   gpus", "ok   gpu 0 to 2"),
    ]
    assert lines[0].endswith(f" serves {daemon.url}")
    assert f"push to {daemon.endpoint}" in lines[1]
    assert str(spool) in lines[2]
    assert str(daemon.history) in lines[3]


def test_the_notified_sinks_are_named() -> None:
    status: dict[str, Any] = {"notifications": {"log": {}, "webhook": {}, "apprise": {}}}
    assert seen(status, _notifications) == [
        "ok notifications: go to apprise, webhook; trackside test-alert tries them",
    ]
    status["notifications"] = {"log": {}}
    (line,) = seen(status, _notifications)
    assert line.startswith("warn notifications: go nowhere but to the daemon's log; set alerts.sinks")


def test_without_a_daemon_the_driver_is_asked_and_only_the_daemon_fails(place: Path) -> None:
    (place / "history").mkdir()
    status, lines = run(place, TRACKSIDE_STORAGE__PATH=str(place / "history"))
    assert status == 1
    assert [line.partition(":")[0] for line in lines] == [
        *("FAIL daemon", "warn push", "ok   spool", "ok   storage", "ok   driver", "ok   gpus", "ok   gpu 0 and 1"),
    ]
    assert lines[0].endswith("answers; start one with: trackside daemon")
    assert lines[1] == f"warn push: training jobs find no daemon at ipc://{place}/push.sock (not found), and spool"


def test_the_leftovers_of_a_killed_daemon_are_reported_and_a_hanging_one_fails(place: Path) -> None:
    (place / "push.token").write_text("secret\n")
    (place / "push.token").chmod(0o600)
    (place / "push.address").write_text("http://127.0.0.1:9\n")
    status, lines = run(place)
    assert (status, lines[0]) == (
        1,
        f"FAIL daemon: {place}/push.address is from a daemon that was killed; start one with: trackside daemon",
    )
    assert lines[1].startswith("warn push: "), "once is enough"


def test_a_daemon_that_a_training_does_not_find_fails_with_the_endpoint_to_set(
    start_daemon: Callable[..., Daemon], place: Path
) -> None:
    daemon = start_daemon("--no-collector.gpu")
    (place / "other").mkdir()
    for name in ("push.token", "push.address"):
        (place / "other" / name).write_text((place / name).read_text())
        (place / "other" / name).chmod(0o600)
    status, lines = run(place / "other")
    assert status == 1
    assert lines[1].startswith(f"FAIL push: training jobs of {pwd.getpwuid(os.getuid()).pw_name} do not find ")
    assert lines[1].endswith(f"; set TRACKSIDE_ENDPOINT={daemon.endpoint}")
    assert lines[-1] == "ok   driver: not queried: the GPU collector is off"


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [("", True), ("ipc://{}/own/push.sock", False), ("foo", False), ("tcp://127.0.0.1:21791", True)],
)
def test_a_daemon_that_was_named_is_asked_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, asked: bool
) -> None:
    (tmp_path / "trackside").mkdir()
    for name, text in (("token", "secret"), ("address", "http://127.0.0.1:9")):
        (tmp_path / "trackside" / f"push.{name}").write_text(text)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", endpoint.format(tmp_path))
    found = [note.file for note in daemon_lookup.local_endpoints()]
    assert (tmp_path / "trackside" / "push.address" in found) == asked
    assert asked or not found


def test_a_spool_that_waits_is_reported_and_one_that_cannot_be_written_fails(place: Path, spool: Path) -> None:
    spool.mkdir()
    for number in (1, 2):
        (spool / f"{'a' * 32}.{number:016d}.spool").touch()
    assert f"warn spool: {spool}: 1 session waits for a daemon; start one, or: trackside spool send" in run(place)[1]
    (place / "file").touch()
    status, lines = run(place, TRACKSIDE_SPOOL=str(place / "file" / "spool"))
    assert status == 1
    assert (
        f"FAIL spool: {place}/file: not a directory; make it writable, or set TRACKSIDE_SPOOL to another directory"
    ) in lines


def test_a_history_that_cannot_be_written_fails(place: Path) -> None:
    status, lines = run(place, TRACKSIDE_STORAGE__PATH=str(place / "missing" / "more"))
    assert status == 1
    assert any(
        line.startswith(f"FAIL storage: {place}/missing/more: no such directory; make it with mkdir") for line in lines
    )


def test_a_configuration_that_is_wrong_fails(place: Path) -> None:
    status, lines = run(place, TRACKSIDE_COLLECTOR__GPU__EXTRA="nothing")
    assert status == 1
    assert lines[-1].startswith("FAIL configuration: TRACKSIDE_COLLECTOR__GPU__EXTRA: no group 'nothing'; there are ")


def test_a_machine_without_a_gpu_needs_no_driver() -> None:
    absent = {"visible": 0, "expected": 0, "error": NO_DRIVER, "absent": True, "paused_until": None}
    assert report_of({**absent, "pci": 0}) == ["ok driver: not needed: there is no NVIDIA GPU on the PCI bus"]
    assert report_of(absent) == [f"warn driver: {NO_DRIVER}"]
    assert report_of({**absent, "pci": 8}) == [
        f"FAIL driver: {NO_DRIVER}; give a container access to the GPUs, for example with docker run --gpus all"
    ]
    assert report_of({**absent, "pci": 0, "expected": 8}) == [f"FAIL driver: {NO_DRIVER}"]


def test_a_driver_that_does_not_answer_fails_with_its_own_remedy() -> None:
    hung = "the NVML worker hung for 10 s and is replaced; look for Xid in dmesg"
    assert report_of({**WELL, "error": hung}, gpu(0, up=False)) == [f"FAIL driver: {hung}"]
    assert report_of({**WELL, "error": hung}, gpu(0)) == [f"warn driver: {hung}"], "it has answered a moment ago"


def test_gpus_that_are_missing_fail_and_those_that_a_container_was_not_given_may_be_so() -> None:
    assert report_of({**WELL, "visible": 7, "expected": 8}, gpu(0))[1] == f"FAIL gpus: 7 of the 8 expected; {SEE}"
    assert report_of({**WELL, "pci": 8}, gpu(0))[1] == (
        f"warn gpus: 2, but 8 on the PCI bus: a container may have access to fewer; else {SEE}"
    )


def test_gpus_that_are_alike_share_a_line_and_one_that_is_lost_has_its_own() -> None:
    gpus = [gpu(0), gpu(1), gpu(2, up=False), gpu(3), gpu(4, name="NVIDIA T4")]
    assert report_of({**WELL, "visible": 5, "expected": 5, "pci": 5}, *gpus) == [
        "ok driver: NVIDIA 580.95, CUDA 13.0",
        "ok gpus: 5, as expected",
        f"FAIL gpu 2: NVIDIA H100 GPU-2: does not answer; {SEE}; reset it with nvidia-smi --gpu-reset, or reboot",
        "ok gpu 0, 1 and 3: NVIDIA H100: all requested families are measured",
        "ok gpu 4: NVIDIA T4: all requested families are measured",
    ]


def test_values_that_a_gpu_does_not_measure_are_reported_with_the_reason_and_curable_ones_first() -> None:
    lacks, denied = WHY["not_supported"], WHY["no_permission"]
    many = {f"family-{number:02}": lacks for number in range(14)}
    assert report_of(WELL, gpu(0, {"energy": lacks, "fan-speed": lacks, "accounting": denied}), gpu(1, many))[2:] == [
        f"warn gpu 0: NVIDIA H100: not measured: accounting ({denied}); energy, fan-speed ({lacks})",
        "ok gpu 1: NVIDIA H100: not measured: " + ", ".join(list(many)[:12]) + f" and 2 more ({lacks})",
    ]


def test_what_is_measured_in_another_way_or_in_part_is_not_missed() -> None:
    refused = {
        "nvlink_errors_total{symbol} from field 221": "no",
        "power_watts from field 186": "no",
        "pcie_errors_total{fatal} from field 180": "no",
        "pcie_errors_total{lane} from field 183": "no",
        "version 3 of nvmlDeviceGetGpuFabricInfoV": "no",
    }
    measures = {**gpu(0, refused), "measured": ["up", "power_watts", "nvlink_errors_total"]}
    assert report_of(WELL, measures)[2:] == ["ok gpu 0: NVIDIA H100: not measured: pcie_errors_total (no)"]


@pytest.mark.parametrize(("until", "shown"), [("inf", "further notice"), (1.7e9, "")])
def test_gpus_that_are_left_alone_are_reported_with_how_to_go_on(until: Any, shown: str) -> None:
    (line,) = report_of({"expected": 0, "error": "paused", "absent": True, "paused_until": until})
    assert line.startswith(f"warn driver: not read: paused until {shown}")
    assert line.endswith("; trackside resume-gpu ends the pause")


def test_a_note_that_cannot_be_read_is_reported_with_the_reason(place: Path) -> None:
    (place / "push.address").mkdir()
    status, lines = run(place)
    assert (status, lines[0]) == (1, f"FAIL daemon: {place}/push.address: is a directory; restart that daemon")
    assert lines[1].startswith("warn push: "), "no advice to start one"


@pytest.mark.parametrize("address", ["no address", "http://[::1", "http://127.0.0.1:99999"])
def test_an_address_that_is_none_fails(place: Path, address: str) -> None:
    (place / "push.token").write_text("secret\n")
    (place / "push.token").chmod(0o600)
    (place / "push.address").write_text(address)
    status, lines = run(place)
    problem = f"{place}/push.address: contains no address"
    assert (status, lines[0]) == (1, f"FAIL daemon: {problem}; restart that daemon")


def test_a_daemon_with_a_stale_or_missing_token_fails_and_its_gpus_are_left_to_it(
    start_daemon: Callable[..., Daemon], place: Path, scenario: Scenario
) -> None:
    daemon = start_daemon("--sample.interval=250ms", *LEAN, environ=scenario.environ)
    eventually(lambda: daemon.api("status").json()["gpus"])
    token, real = place / "push.token", {"TRACKSIDE_COLLECTOR__GPU__SIMULATE": "0"}
    token.write_text("stale\n")
    status, lines = run(place, **real)
    reported = f"FAIL daemon: {daemon.url} rejects the token in {token}; restart that daemon"
    assert (status, lines[0]) == (1, reported)
    assert [line.partition(":")[0] for line in lines[1:]] == ["ok   push", "ok   spool", "ok   storage", "warn driver"]
    assert lines[-1].startswith("warn driver: not queried: process ")
    assert lines[-1].endswith(
        " already samples the GPUs of this machine; run this as that user, where its daemon runs, for details"
    )
    token.unlink()
    status, lines = run(place, **real)
    assert (status, lines[0]) == (1, f"FAIL daemon: {token}: no such file or directory; restart that daemon")


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("foo", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("tcp://127.0.0.1:99999", "neither ipc://PATH nor tcp://HOST:PORT"),
        ("ipc://", "not a socket"),
        ("ipc:///etc/passwd", "not a socket"),
    ],
)
def test_an_endpoint_that_can_be_none_fails(place: Path, endpoint: str, why: str) -> None:
    status, lines = run(place, TRACKSIDE_ENDPOINT=endpoint)
    assert status == 1
    assert f"FAIL push: training jobs find no daemon at {endpoint} ({why}), and spool; fix that, or set " in "".join(
        lines
    )


@pytest.mark.parametrize(("free", "levels"), [(1, ("FAIL", "FAIL")), (10, ("warn", "FAIL")), (200, ("warn",) * 2)])
def test_a_disk_that_is_full_fails_and_one_that_soon_is_warns(
    place: Path, spool: Path, free: int, levels: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)._replace(free=free << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    (spooled,), (stored,) = seen({}, _spool), seen({"storage_path": str(place)}, _storage)
    assert spooled == (
        f"{levels[0]} spool: {spool} has {free} MiB left; free some space, or set TRACKSIDE_SPOOL to another directory"
    )
    assert stored.startswith(f"{levels[1]} storage: {place} has {free} MiB left")
    assert stored.endswith("; free some space, or give another directory with --storage.path=DIR")


def test_places_that_this_user_cannot_read_are_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is too long, so that even root cannot read the file."""
    hidden = place / ("x" * 300) / "history"
    assert seen({"storage_path": str(hidden)}, _storage) == [
        f"warn storage: {hidden}: file name too long; to check it, run this as the daemon's user"
    ]
    monkeypatch.setenv("TRACKSIDE_SPOOL", str(hidden))
    assert seen({}, _spool) == [
        f"FAIL spool: {hidden}: file name too long; make it writable, or set TRACKSIDE_SPOOL to another directory"
    ]


def test_a_disk_of_unknown_free_space_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", str(place))

    monkeypatch.setattr(shutil, "disk_usage", broken)
    assert seen({"storage_path": str(place)}, _storage)[0].startswith(f"warn storage: {place}: stale file handle; to ")


OTHER = "warn driver: unknown: the daemon is another version of trackside; restart it"


@pytest.mark.parametrize(
    ("status", "reported"),
    [
        ({}, OTHER),
        ({"version": "0", "nvml": None}, OTHER),
        ({"version": __version__}, "Object missing required field `nvml`"),
        ({"version": __version__, "nvml": {"error": ""}}, "Object missing required field `absent` - at `$.nvml`"),
        ({"version": __version__, "nvml": WELL, "gpus": None}, "Expected `array`, got `null` - at `$.gpus`"),
        (
            {"version": __version__, "nvml": WELL, "gpus": [{}]},
            "Object missing required field `index` - at `$.gpus[0]`",
        ),
    ],
)
def test_a_daemon_of_another_version_or_shape_is_reported_and_never_that_gpus_are_off(
    status: dict[str, Any], reported: str
) -> None:
    shape = f"warn driver: the daemon's status has another format ({reported}); restart the daemon"
    assert seen(status) == [reported if reported == OTHER else shape]


def test_nothing_else_is_read_from_a_daemon_of_another_version() -> None:
    answered = [one.text for one in _about("http://x", {"version": "0", "metrics": None})]
    assert answered == [f"http://x is trackside 0, but this command is {__version__}; restart the daemon"]
    answered = [one.text for one in _about("http://x", {})]
    assert answered == [f"http://x is of another version, but this command is {__version__}; restart the daemon"]


def test_a_failed_collector_is_reported_with_its_reason_and_one_without_values_is_not(
    start_daemon: Callable[..., Daemon], place: Path, tmp_path: Path
) -> None:
    (tmp_path / "stat").write_text("no such thing\n")
    start_daemon("--no-collector.gpu", f"--path.procfs={tmp_path}", "--sample.interval=250ms")
    _, lines = run(place)
    assert any(one.startswith("warn collector cpu: fails: ") and "stat" in one for one in lines)
    assert not any("pressure" in one for one in lines)


def test_a_certificate_that_soon_ends_is_reported(
    start_daemon: Callable[..., Daemon], place: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.issue("server", until=datetime.now(timezone.utc) + timedelta(days=7, hours=1))
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}")
    (tmp_path / "credentials.yml").write_text("tls_config: {ca_file: ca.pem}")
    flags = ("--no-collector.gpu", f"--web.config.file={tmp_path}/web.yml")
    daemon = start_daemon(*flags, asking={"verify": authority.trust()})
    _, lines = run(place, TRACKSIDE_WEB__CREDENTIALS_FILE=str(tmp_path / "credentials.yml"))
    assert lines[1] == f"warn certificate: that of {daemon.url} expires in 7 days; replace it"
    _, lines = run(place, TRACKSIDE_WEB__CREDENTIALS_FILE=str(tmp_path / "absent.yml"))
    assert lines[0] == (
        f"FAIL daemon: --web.credentials-file: {tmp_path}/absent.yml: no such file or directory; give a file that you may read"
    )
