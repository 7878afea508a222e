"""deploy/alertmanager with Debian's Alertmanager: routes, inhibitions and texts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.alertmanager import DEPLOY, Alertmanager, by_webhook, routes, shipped
from end_to_end.inbox import Inbox
from processes import DEADLINE, eventually

from trackside_daemon.alerts.rules.fleet import NAMES
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None, reason="prometheus-alertmanager is not installed"
)

CONFIG = DEPLOY / "alertmanager.yml"
RUN = {"cluster": "c", "run": "gpt"}
NODE = {"cluster": "c", "instance": "node7:21790"}
GPU = {**NODE, "gpu": "0", "uuid": "GPU-0"}
TEAM = {"namespace": "a"}
DRAINED = {"alert": "NodeDrained", "severity": "info", **NODE}
DOWN = {"alert": "SidecarDown", "severity": "warning", **NODE}
HUNGRY = {"alert": "ContainerMemoryPressure", "severity": "critical", **NODE}


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    """Alertmanager whose receivers do not exist."""
    silent = by_webhook(shipped(), "http://127.0.0.1:9", group_wait="1h")
    with ExitStack() as ends:
        running = Alertmanager(tmp_path_factory.mktemp("alertmanager"), silent)
        ends.callback(running.stop)
        yield running


def test_alertmanager_accepts_the_configuration() -> None:
    assert "SUCCESS" in amtool("check-config", str(CONFIG))


def test_secrets_are_read_from_files() -> None:
    text = CONFIG.read_text(encoding="utf-8")
    for secret in ("api_url:", "routing_key:", "service_key:", "auth_password:", "password:", "bearer_token:"):
        assert f" {secret}" not in text


@pytest.mark.parametrize(
    ("receiver", "labels"),
    [
        ("heartbeat", ["alertname=TracksideWatchdog", "severity=none"]),
        ("nobody", ["alertname=TracksideRunStarted", "severity=info", "run=gpt"]),
        ("nobody", ["alertname=TracksideOomKilled", "severity=info", "instance=node7:21790"]),
        ("training", ["alertname=TracksideLossSpike", "severity=warning", "run=gpt", "rank=3"]),
        ("training-page", ["alertname=TracksideNonFinite", "severity=critical", "run=gpt", "instance=node7:21790"]),
        ("training-page", ["alertname=TracksideRunVanished", "severity=critical", "run=gpt"]),
        ("training", ["alertname=TracksideTestAlert", "severity=warning", "run=gpt", "subject=ab"]),
        ("owner", ["alertname=TracksideTestAlert", "severity=warning", "run=gpt", "subject=ab", "user=ann"]),
        ("training-page", ["alertname=TracksideTestAlert", "severity=critical", "run=gpt", "subject=ab"]),
        ("hardware", ["alertname=TracksideTestAlert", "severity=warning", "subject=ab"]),
        ("hardware-page", ["alertname=TracksideTestAlert", "severity=critical", "subject=ab"]),
        ("nobody", ["alertname=TracksideTestAlert", "severity=info", "subject=ab"]),
        ("hardware", ["alertname=TracksideGpuHot", "severity=warning", "uuid=GPU-0", "instance=node7:21790"]),
        ("owner", ["alertname=TracksideNonFinite", "severity=warning", "run=gpt", "user=ann"]),
        ("training", ["alertname=TracksideNonFinite", "severity=warning", "run=gpt", "user=1000"]),
        ("training-page", ["alertname=TracksideNonFinite", "severity=critical", "run=gpt", "user=ann"]),
        ("training-page", ["alertname=TracksideTrainingProcessDied", "severity=critical", "run=gpt", "user=ann"]),
        ("owner", ["alertname=TracksideTrainingProcessDied", "severity=warning", "user=ann"]),
        ("training-page", ["alertname=TracksideTrainingProcessDied", "severity=critical", "user=ann"]),
        ("nobody", ["alertname=TracksideNodeDrained", "severity=info", "instance=node7:21790"]),
        ("platform", ["alertname=TracksideMonitorBlind", "severity=warning", "instance=node7:21790"]),
        ("hardware", ["alertname=TracksideSidecarDown", "severity=warning", "instance=node7:21790"]),
        ("hardware-page", ["alertname=TracksideGpuLost", "severity=critical", "uuid=GPU-0"]),
        ("hardware-page", ["alertname=TracksideFilesystemDead", "severity=critical", "subject=/data"]),
        (
            "hardware-page",
            ["alertname=TracksideFilesystemDead", "severity=critical", "fstype=nfs4", "mountpoint=/data"],
        ),
        ("hardware", ["alertname=TracksideDiskFilling", "severity=warning", "fstype=lustre", "mountpoint=/data"]),
        ("default", ["alertname=NodeClockSkew", "severity=warning", "instance=node7:9100"]),
        ("default", ["alertname=OtherOperator", "severity=critical", "run=nightly"]),
    ],
)
def test_an_alert_is_sent_to_its_receiver(receiver: str, labels: Sequence[str]) -> None:
    amtool("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *labels)


def test_every_receiver_has_a_route_and_each_route_is_tested() -> None:
    used = {route["receiver"] for route in routes(shipped()["route"])}
    assert used == {receiver["name"] for receiver in shipped()["receivers"]}
    marked = test_an_alert_is_sent_to_its_receiver.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert used == {receiver for receiver, _ in marked}


@pytest.mark.parametrize(
    ("name", "source", "target", "quiet"),
    [
        ("warning", {"alert": "NonFinite", "severity": "critical", **RUN}, {"severity": "warning", **RUN}, True),
        ("other-run", {"severity": "critical", **RUN}, {"severity": "warning", **RUN, "run": "bert"}, False),
        ("other-cluster", {"severity": "critical", **RUN}, {"severity": "warning", **RUN, "cluster": "d"}, False),
        ("one-cluster", {"severity": "critical", "run": "a"}, {"severity": "warning", "run": "a"}, True),
        ("as-bad", {"severity": "critical", **RUN}, {"severity": "critical", **RUN}, False),
        ("no-run", {"severity": "critical", **NODE}, {"severity": "warning", **NODE}, False),
        ("user", {"alert": "UserAlert", "severity": "critical", **RUN}, {"severity": "warning", **RUN}, False),
        (
            "other-team",
            {"severity": "critical", **RUN, **TEAM},
            {"severity": "warning", **RUN, "namespace": "b"},
            False,
        ),
        ("drained", DRAINED, {"severity": "warning", **NODE}, True),
        ("drained-page", DRAINED, {"severity": "critical", **NODE}, False),
        ("drained-but-run", DRAINED, {"severity": "warning", **NODE, "run": "gpt"}, False),
        ("down", DOWN, {"severity": "warning", **NODE}, True),
        ("down-page", DOWN, {"severity": "critical", **NODE}, False),
        ("down-elsewhere", DOWN, {"severity": "warning", **NODE, "instance": "node8:21790"}, False),
        ("down-nowhere", {**DOWN, "instance": ""}, {"severity": "warning", "cluster": "c"}, False),
        ("down-but-run", DOWN, {"severity": "warning", **NODE, "run": "gpt"}, False),
        ("down-at-times", {**DOWN, "variant": "flapping"}, {"severity": "warning", **NODE}, False),
        ("worse", HUNGRY, {**HUNGRY, "severity": "warning"}, True),
        ("worse-elsewhere", {**HUNGRY, "cgroup": "a"}, {**HUNGRY, "severity": "warning", "cgroup": "b"}, False),
        (
            "lost",
            {"alert": "GpuLost", "severity": "critical", **GPU},
            {"alert": "GpuHot", "severity": "warning", **GPU},
            True,
        ),
        (
            "lost-xid",
            {"alert": "GpuLost", "severity": "critical", **GPU},
            {"alert": "GpuXid", "severity": "critical", **GPU},
            False,
        ),
        (
            "lost-other",
            {"alert": "GpuLost", "severity": "critical", **GPU},
            {"alert": "GpuHot", "severity": "warning", **GPU, "uuid": "GPU-1"},
            False,
        ),
        (
            "lost-unnamed",
            {"alert": "GpuLost", "severity": "critical", **NODE},
            {"alert": "GpuHot", "severity": "warning", **NODE},
            False,
        ),
    ],
)
def test_only_consequences_are_inhibited(
    alertmanager: Alertmanager, name: str, source: dict[str, str], target: dict[str, str], quiet: bool
) -> None:
    node = {"cluster": "control", "instance": "control"}
    control = {"alertname": "TracksideControl", "severity": "warning", **node}
    down = {"alertname": "TracksideSidecarDown", "severity": "warning", **node}
    alerts = [_named(source, "Source"), _named(target, "Target"), control, down]
    alertmanager.post(*alerts)

    def inhibited() -> set[str]:
        return {one["labels"]["alertname"] for one in alertmanager.active() if one["status"]["inhibitedBy"]}

    try:
        eventually(lambda: control["alertname"] in inhibited())  # by the last source that Alertmanager has read
        assert inhibited() - {control["alertname"]} == ({alerts[1]["alertname"]} if quiet else set())
    finally:
        alertmanager.post(*alerts, resolved=True)
        eventually(lambda: not alertmanager.active())


def test_no_page_is_inhibited_since_its_end_would_not_be_sent() -> None:
    assert [one for one in shipped()["inhibit_rules"] if 'severity=~"warning|info"' not in one["target_matchers"]] == []


def test_each_cluster_has_its_own_heartbeat() -> None:
    (beat,) = [route for route in routes(shipped()["route"]) if route["receiver"] == "heartbeat"]
    assert beat["group_by"] == ["cluster"]


def _named(labels: dict[str, str], otherwise: str) -> dict[str, str]:
    about = {name: text for name, text in labels.items() if name != "alert"}
    return {"alertname": f"Trackside{labels.get('alert', otherwise)}", **about}


def test_64_ranks_on_8_nodes_are_one_message(tmp_path: Path) -> None:
    with closing(Inbox()) as inbox, ExitStack() as ends:
        reported = by_webhook(shipped(), inbox.url, group_wait="1s", group_interval="1s")
        running = Alertmanager(tmp_path, reported)
        ends.callback(running.stop)
        alert = {"alertname": "TracksideNonFinite", "severity": "critical", **RUN}
        running.post(*({**alert, "rank": str(rank), "instance": f"node{rank // 8}:21790"} for rank in range(64)))
        eventually(lambda: inbox.of("training-page"))
        running.post({"alertname": "TracksideGpuLost", "severity": "critical", **GPU})
        eventually(lambda: inbox.of("hardware-page"))  # told after whatever came before it
    (letter,) = inbox.of("training-page")
    assert len(letter.body["alerts"]) == 64
    assert {one.path for one in inbox.letters} == {"training-page", "hardware-page"}


def _node(number: int, hall: str = "a") -> dict[str, str]:
    return {"cluster": "c", "instance": f"{hall}{number}:21790", "rack": f"{hall}{number // 40}"}


def _gpus(nodes: int, alert: str, severity: str, **more: str) -> list[dict[str, str]]:
    about = {"alertname": f"Trackside{alert}", "severity": severity, **more}
    return [
        {**about, **_node(node, alert), "gpu": str(gpu), "uuid": f"{alert}-{node}-{gpu}"}
        for node in range(nodes)
        for gpu in range(8)
    ]


def _waiting(nodes: int) -> list[dict[str, str]]:
    run = {"severity": "warning", "run": "gpt", "user": "ann"}
    waits = [{"alertname": "TracksideDataLoaderBottleneck", **run, **_node(node)} for node in range(nodes)]
    return [*_gpus(nodes, "GpuUnderutilized", "warning", run="gpt", user="ann"), *waits]


def _raising(runs: int, severity: str) -> list[dict[str, str]]:
    died = {"alertname": "TracksideTrainingProcessDied", "severity": severity, "user": "ann", "rank": "0"}
    return [{**died, **_node(run), "run": f"sweep-{run}"} for run in range(runs)]


def _misconfigured(nodes: int) -> list[dict[str, str]]:
    failed = {"alertname": "TracksideConfigReloadFailed", "severity": "warning"}
    return [{**failed, **_node(node)} for node in range(nodes)]


def test_one_cause_on_many_nodes_is_three_messages_at_most(tmp_path: Path) -> None:
    _send_events(tmp_path, 20)


@pytest.mark.usefixtures("only_soak")
def test_one_cause_on_400_nodes_is_three_messages_at_most(tmp_path: Path) -> None:
    _send_events(tmp_path, 400)


def _send_events(place: Path, nodes: int) -> None:
    """Count the messages of each event: a data wait, a switch, a driver, runs that raise, and a wrong configuration.

    The alerts of each event arrive in two posts, as from two evaluations; the groups wait for a second instead of five to
    thirty.
    """
    events = {
        "owner": _waiting(nodes),
        "hardware": _gpus(max(2, nodes // 10), "InfinibandDegraded", "warning"),
        "hardware-page": _gpus(max(2, nodes // 10), "GpuLost", "critical"),
        "training-page": _raising(max(2, nodes // 4), "critical"),
        "platform": _misconfigured(nodes),
    }
    with closing(Inbox()) as inbox, ExitStack() as ends:
        reported = by_webhook(shipped(), inbox.url, group_wait="1s", group_interval="2s")
        running = Alertmanager(place, reported)
        ends.callback(running.stop)

        def seen(receiver: str, status: str) -> set[str]:
            alerts = [alert for letter in inbox.of(receiver) for alert in letter.body["alerts"]]
            return {alert["fingerprint"] for alert in alerts if alert["status"] == status}

        for alerts in events.values():
            running.post(*alerts[::2])
        eventually(lambda: all(seen(receiver, "firing") for receiver in events))
        for alerts in events.values():
            running.post(*alerts[1::2])
        eventually(lambda: all(len(seen(one, "firing")) == len(alerts) for one, alerts in events.items()))
        counts = {receiver: len(inbox.of(receiver)) for receiver in events}
        assert max(counts.values()) <= 3, counts
        assert {letter.path for letter in inbox.letters} == {*events}
        for alerts in events.values():
            running.post(*alerts, resolved=True)
        eventually(lambda: all(len(seen(one, "resolved")) == len(alerts) for one, alerts in events.items()))
        counts = {receiver: len(inbox.of(receiver)) - counts[receiver] for receiver in events}
        assert max(counts.values()) <= 3, counts


def test_a_sweep_of_a_user_that_raises_is_a_mail_to_that_user(tmp_path: Path) -> None:
    with closing(Inbox()) as inbox, ExitStack() as ends:
        running = Alertmanager(tmp_path, by_webhook(shipped(), inbox.url, group_wait="1s", group_interval="1s"))
        ends.callback(running.stop)
        running.post(*_raising(20, "warning"), *({**one, "user": "bob"} for one in _raising(2, "warning")))
        eventually(lambda: len(inbox.letters) > 1)
    found = {one.body["groupLabels"]["user"]: len(one.body["alerts"]) for one in inbox.letters}
    assert ({one.path for one in inbox.letters}, found) == ({"owner"}, {"ann": 20, "bob": 2})


def test_alerts_of_the_daemons_go_to_the_platform() -> None:
    """Check all but alerts of nodes that are gone, of a driver that hangs and of runs, which have other receivers, and info."""
    others = {"SidecarDown", "SidecarsDown", "NvmlStuck", "RunVanished", "RunRestarting", "Watchdog"}
    noted = {name for name in NAMES if TROUBLES[name].severity == "info"}
    names = {name.removeprefix("Trackside") for name in NAMES - noted} - others
    (route,) = (one for one in routes(shipped()["route"]) if one["receiver"] == "platform")
    assert set(re.findall(r"[(|](\w+)", route["matchers"][0])) == names | {"MonitorBlind"}


def test_a_test_alert_waits_for_no_other_alert_nor_for_the_test_before(tmp_path: Path) -> None:
    with closing(Inbox()) as inbox, ExitStack() as ends:
        running = Alertmanager(tmp_path, by_webhook(shipped(), inbox.url, group_wait="0s", group_interval="5m"))
        ends.callback(running.stop)
        running.post({"alertname": "TracksideGpuHot", "severity": "warning", "instance": "node7:21790", **GPU})
        eventually(lambda: inbox.of("hardware"))
        for number in ("a", "b"):
            test = {"alertname": "TracksideTestAlert", "severity": "warning", "instance": "node7:21790"}
            running.post({**test, "subject": number})
            eventually(lambda number=number: inbox.of("hardware")[-1].body["groupLabels"].get("subject") == number)  # type: ignore[misc]
    assert len(inbox.of("hardware")) == 3


def test_a_file_server_that_dies_is_one_message_for_all_its_nodes_and_their_own_disks_another(tmp_path: Path) -> None:
    dead = {"alertname": "TracksideFilesystemDead", "severity": "critical", "cluster": "c", "mountpoint": "/data"}
    with closing(Inbox()) as inbox, ExitStack() as ends:
        reported = by_webhook(shipped(), inbox.url, group_wait="1s", group_interval="1s")
        running = Alertmanager(tmp_path, reported)
        ends.callback(running.stop)
        nodes = [f"node{number}:21790" for number in range(8)]
        running.post(*({**dead, "fstype": "nfs4", "instance": node} for node in nodes))
        eventually(lambda: inbox.of("hardware-page"))
        running.post(*({**dead, "fstype": "xfs", "instance": node} for node in nodes[:2]))
        eventually(lambda: len(inbox.of("hardware-page")) > 1)
    found = [(len(one.body["alerts"]), sorted(one.body["groupLabels"])) for one in inbox.of("hardware-page")]
    assert found == [(8, ["alertname", "cluster", "mountpoint"]), (2, ["alertname", "cluster"])]


NONFINITE = {
    "alertname": "TracksideNonFinite",
    "severity": "critical",
    "rank": "3",
    "key": "loss",
    **RUN,
    "run": "gpt small/é",
    "@summary": "A loss or a gradient norm is NaN or infinite.",
    "@description": "trackside alerts show NonFinite says at which step.",
    "@runbook_url": "https://docs.example/alerts.md#nonfinite",
    "@correlation_id": "pipeline-7",
}
SILENCE = (
    "silences/new?filter=%7Balertname%3D%22TracksideNonFinite%22%2C%20cluster%3D%22c%22%2C%20"
    "run%3D%22gpt%20small%2F%C3%A9%22%2C%20severity%3D%22critical%22%7D"
)


def test_a_message_names_the_run_the_severity_the_runbook_and_the_silence(tmp_path: Path) -> None:
    with closing(Inbox()) as inbox, ExitStack() as ends:
        running = Alertmanager(tmp_path, _to(inbox, tmp_path))
        ends.callback(running.stop)
        running.post(NONFINITE)
        slack = eventually(lambda: inbox.of("slack"))[0].body["attachments"][0]
        pager = eventually(lambda: inbox.of("pager"))[0].body
        running.post(NONFINITE, resolved=True)
        over = eventually(lambda: inbox.of("slack")[1:])[0].body["attachments"][0]
        resolved = eventually(lambda: inbox.of("pager")[1:])[0].body
    title = "run gpt small/é (c): A loss or a gradient norm is NaN or infinite."
    assert (slack["title"], slack["color"]) == (f"[critical] {title}", "danger")
    assert slack["title_link"] == NONFINITE["@runbook_url"]
    assert slack["text"].splitlines()[0].startswith("NonFinite, run gpt small/é, rank 3, loss, since 2")
    assert slack["text"].splitlines()[1:-2] == [
        NONFINITE["@summary"],
        NONFINITE["@description"],
        "Correlation id: pipeline-7",
        f"What to do: {NONFINITE['@runbook_url']}",
    ]
    assert slack["text"].splitlines()[-1].startswith("Silence this: http")
    assert slack["text"].endswith(SILENCE)
    assert (pager["event_action"], pager["payload"]["severity"]) == ("trigger", "critical")
    assert pager["payload"]["summary"] == f"[critical] {title}"
    assert pager["payload"]["custom_details"]["what"].strip() == slack["text"].strip()
    assert (over["title"], over["color"]) == (f"[resolved] {title}", "good")
    assert over["text"].startswith("Resolved: NonFinite")
    assert "Quiet" not in over["text"]
    assert resolved["event_action"] == "resolve"


def _to(inbox: Inbox, directory: Path) -> dict[str, Any]:
    """Return the shipped configuration with local receivers, no group waits, and secrets in files."""
    config = shipped()
    (directory / "slack-url").write_text(f"{inbox.url}/slack")
    (directory / "pager-key").write_text("k" * 32)
    config["global"] |= {"slack_api_url_file": str(directory / "slack-url"), "pagerduty_url": f"{inbox.url}/pager"}
    for receiver in config["receivers"]:
        for pager in receiver.get("pagerduty_configs", ()):
            pager["routing_key_file"] = str(directory / "pager-key")
    for route in routes(config["route"]):
        route.update({key: "1s" for key in ("group_wait", "group_interval") if key in route})
    return config


def rendered(text: str, alerts: Sequence[dict[str, Any]], directory: Path, **more: Any) -> str:
    """Return amtool's output for a template."""
    file = directory / "data.json"
    file.write_text(json.dumps({"receiver": "hardware", "externalURL": "http://am", "alerts": alerts, **more}))
    return amtool(
        *("template", "render", f"--template.glob={DEPLOY / 'trackside.tmpl'}", f"--template.data={file}"),
        f'--template.text={{{{ template "{text}" . }}}}',
    )


ALL = "http://am/#/alerts?receiver=hardware"


def fired(number: int) -> dict[str, Any]:
    about = {"alertname": "TracksideGpuHot", "gpu": str(number), "instance": "node7:21790"}
    words = {"summary": f"GPU {number} is hot.", "description": "Look at the fans."}
    return {"status": "firing", "labels": about, "annotations": words, "startsAt": "2026-01-02T03:04:05Z"}


def test_a_message_has_ten_alerts_in_full_and_names_ninety_others(tmp_path: Path) -> None:
    common = {
        "status": "firing",
        "commonLabels": {"instance": "node7:21790"},
        "groupLabels": {"instance": "node7:21790"},
    }
    alerts = [fired(number) for number in range(12)]
    text = rendered("trackside.text", alerts, tmp_path, **common)
    assert text.count("Look at the fans.") == 10
    assert [f"GPU {number}, on" in text for number in range(12)] == [True] * 12
    assert "These are 12 alerts; all of them: http://am/#/alerts?receiver=hardware" in text
    assert "Silence this: http://am/#/silences/new?filter=%7Binstance%3D%22node7%3A21790%22%7D" in text
    many = rendered("trackside.text", [fired(number) for number in range(102)], tmp_path, status="firing")
    assert (many.count("GpuHot, GPU"), "These are 100 of 102 alerts" in many) == (100, True)
    assert "Silence this group, on all nodes: http" in many
    assert rendered("trackside.title", alerts, tmp_path, **common) == "[firing] node7:21790: GPU 0 is hot. And 11 more."
    one = rendered("trackside.text", alerts[:1], tmp_path, **common)
    assert rendered("trackside.link", alerts, tmp_path, **common) == ALL
    assert one.startswith(
        "GpuHot, GPU 0, on node7:21790, since 2026-01-02 03:04:05 UTC\nGPU 0 is hot.\nLook at the fans."
    )
    alerts[0]["annotations"]["since"] = "2026-01-02 03:01:18 UTC"
    assert ", since 2026-01-02 03:01:18 UTC\n" in rendered("trackside.text", alerts[:1], tmp_path, **common)


@pytest.mark.parametrize(
    ("runbook", "link"),
    [
        ("https://docs.example/alerts.md#gpuhot", "https://docs.example/alerts.md#gpuhot"),
        ("http://wiki/alerts#gpuhot", "http://wiki/alerts#gpuhot"),
        ("docs/alerts.md#gpuhot", ALL),
    ],
)
def test_a_link_is_one_that_can_be_followed(tmp_path: Path, runbook: str, link: str) -> None:
    common = {"status": "firing", "commonLabels": {}, "groupLabels": {}, "commonAnnotations": {"runbook_url": runbook}}
    assert rendered("trackside.link", [fired(0)], tmp_path, **common) == link


@pytest.mark.parametrize(
    ("common", "words"),
    [
        ({"instance": "n1", "gpu": "0"}, "this: {}%2C%20instance%3D%22n1%22"),
        ({"gpu": "0"}, "this group, on all nodes: {}"),
    ],
)
def test_a_silence_is_about_the_node_where_the_message_is(tmp_path: Path, common: dict[str, str], words: str) -> None:
    labels = {"alertname": "TracksideGpuXid", "cluster": "a"}
    group = {"status": "firing", "commonLabels": {**labels, **common}, "groupLabels": labels}
    link = "http://am/#/silences/new?filter=%7Balertname%3D%22TracksideGpuXid%22%2C%20cluster%3D%22a%22"
    assert rendered("trackside.text", [fired(0)], tmp_path, **group).endswith(f"Silence {words.format(link)}%7D")


def test_a_message_about_a_file_server_names_the_mount_and_no_node(tmp_path: Path) -> None:
    labels = {"alertname": "TracksideFilesystemDead", "cluster": "c", "mountpoint": "/data"}
    common = {
        "status": "firing",
        "commonLabels": {**labels, "severity": "critical", "instance": "node7:21790"},
        "groupLabels": labels,
        "commonAnnotations": {"summary": "A file system does not answer."},
    }
    title = rendered("trackside.title", [fired(0)], tmp_path, **common)
    assert title == "[critical] /data (c): A file system does not answer."
