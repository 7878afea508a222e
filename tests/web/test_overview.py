"""The overview, from the state, the firing alerts and the history."""

from __future__ import annotations

import json
from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Any

import pytest
from session_records import batch_ingested, session_opened
from wire_messages import WALL, FakeSession, pushed

from trackside_daemon.model.families import host as host_families
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert
from trackside_daemon.web.api.overview import overview as module
from trackside_daemon.web.api.overview.overview import AlertIds
from trackside_daemon.web.api.overview.rates import MAX_POINTS, CounterGroup, LossCurve

if TYPE_CHECKING:
    from conftest import Site  # type: ignore[attr-defined]
    from wire_messages import RunsHarness

RECEIVED, SENT = host_families.NETWORK_RECEIVED, host_families.NETWORK_SENT


class Clock:
    """A clock with the time of the house, for the overview."""

    def __init__(self, house: RunsHarness) -> None:
        self._house = house

    def time(self) -> float:
        return self._house.now.wall

    def monotonic(self) -> float:
        return self._house.now.monotonic


@pytest.fixture(autouse=True)
def clock(house: RunsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock(house))


def overview(site: Site) -> dict[str, Any]:
    """Return the overview as the endpoint returns it."""
    found: dict[str, Any] = site.client().get("/api/v1/overview", headers=site.key).json()
    return found


def train(site: Site, house: RunsHarness, session: FakeSession, seconds: int, **totals: int) -> None:
    """Push a step a second with ticks in between; the loss falls by a tenth each, totals grow by *totals* a step."""
    for _ in range(seconds):
        house.after += 1.0
        step = round(house.after)
        grown = {name: getattr(session.totals, name) or 0 for name in totals}
        house.push(session, {"loss": 100 - step / 10}, step, **{name: grown[name] + totals[name] for name in totals})
        site.rates.record(house.now.monotonic)


def test_a_run_has_its_numbers_rates_and_the_course_of_its_loss(site: Site, house: RunsHarness) -> None:
    session = FakeSession("id-1", world=2, local_world=2)
    house.hello(session, total_steps=100)
    site.keep(session_opened(session.id, session.hello(total_steps=100), "train", 0, WALL))
    train(site, house, session, 20, tokens=500, samples=4)
    (run,) = overview(site)["runs"]
    assert run == {
        "id": "id-1",
        "name": "train",
        "state": "running",
        "attempt": 0,
        "world_size": 2,
        "user": "",
        "started": WALL,
        "step": 20,
        "total_steps": 100,
        "progress_ratio": 0.2,
        "remaining_seconds": None,
        "loss": 98.0,
        "tokens_per_second": 500.0,
        "samples_per_second": 4.0,
        "step_seconds": None,
        "last_step_time": WALL + 20,
        "verdict": "",
        "alerts": {"critical": 0, "warning": 0, "info": 0},
        "sparkline": [100 - step / 10 for step in range(1, 21)],
    }


def test_an_unmeasured_value_of_a_run_is_null(site: Site, house: RunsHarness) -> None:
    house.hello(other := FakeSession("id-0", name="other"))
    train(site, house, other, 2, tokens=500)
    house.after += 1.0
    house.hello(FakeSession("id-1"))
    site.rates.record(house.now.monotonic)
    reported = overview(site)
    assert reported["host"].keys() == {"name", "cpus", "disks"}
    assert reported["gpus"] == reported["alerts"] == []
    (run,) = (one for one in reported["runs"] if one["id"] == "id-1")
    unmeasured = ("step", "total_steps", "loss", "tokens_per_second", "samples_per_second", "step_seconds")
    assert [run[name] for name in unmeasured] == [None] * len(unmeasured)
    assert run["sparkline"] == []


def test_amounts_of_all_ranks_are_summed_and_the_loss_is_the_lowest_ranks(site: Site, house: RunsHarness) -> None:
    ranks = [FakeSession("id-1", rank=rank, world=2, local_world=2) for rank in (1, 0)]
    for session in ranks:
        house.hello(session)
    for step in range(1, 12):
        house.after += 1.0
        for session in ranks:
            house.push(session, {"loss": float(session.identity.rank)}, step + session.identity.rank, tokens=step * 100)
        site.rates.record(house.now.monotonic)
    (run,) = overview(site)["runs"]
    assert (run["tokens_per_second"], run["loss"], run["step"]) == (200.0, 0.0, 12)
    assert set(run["sparkline"]) == {0.0}


def test_a_loss_of_another_name_counts_where_there_is_no_loss(site: Site, house: RunsHarness) -> None:
    session = FakeSession("id-1")
    house.hello(session)
    house.push(session, {"train/loss": nan}, 1)
    site.rates.record(house.now.monotonic)
    (run,) = overview(site)["runs"]
    assert (run["loss"], run["sparkline"]) == ("nan", ["nan"])


def test_a_run_that_stands_still_makes_no_tokens_a_second(site: Site, house: RunsHarness) -> None:
    session = FakeSession("id-1")
    house.hello(session)
    train(site, house, session, 5, tokens=500)
    assert overview(site)["runs"][0]["tokens_per_second"] == 500.0
    house.after += 60.0
    site.rates.record(house.now.monotonic)
    assert overview(site)["runs"][0]["tokens_per_second"] == 0.0


def test_what_a_run_did_before_this_daemon_comes_from_the_history(site: Site, house: RunsHarness) -> None:
    session = FakeSession("id-1")
    rows = [(float(step), step, (1000.0 - step,)) for step in range(300)]
    shift = round((WALL - 50.0) * 1e9)
    blocks = [
        batch_ingested(session.id, number + 1, [pushed(["loss"], *rows[number * 10 :][:10])], shift)
        for number in range(30)
    ]
    site.keep(session_opened(session.id, session.hello(), "train", 0, WALL), *blocks)
    house.hello(session)
    house.push(session, {"loss": 0.5}, 300, steps=300)
    site.rates.record(house.now.monotonic)
    (run,) = overview(site)["runs"]
    assert 29 <= len(run["sparkline"]) <= MAX_POINTS
    assert run["sparkline"][0] == 1000.0 - 9
    assert run["sparkline"][-1] == 0.5
    assert run["sparkline"] == sorted(run["sparkline"], reverse=True)


def test_a_run_that_ended_stays_while_it_lingers(site: Site, house: RunsHarness) -> None:
    for name in ("first", "second"):
        house.after += 1.0
        session = FakeSession(name, name=name)
        hello = session.hello(house.after)
        hello.started += round(house.after * 1e9)
        house.open(session.id, hello)
    assert [run["name"] for run in overview(site)["runs"]] == ["second", "first"]
    house.bye(session)
    assert [run["state"] for run in overview(site)["runs"]] == ["finished", "starting"]
    house.wait(61.0)
    assert [run["name"] for run in overview(site)["runs"]] == ["first"]


def test_the_machine_shows_how_busy_it_is_and_what_its_network_carries(site: Site, house: RunsHarness) -> None:
    for second in (0, 1, 2):
        house.after = float(second)
        cpu = {"user": 10 + 0.5 * second, "idle": 90 + 1.0 * second, "iowait": 5 + 0.5 * second}
        site.state.update(
            Batch("cpu", [Sample(host_families.CPU_SECONDS, (mode,), value) for mode, value in cpu.items()])
        )
        traffic = [Sample(RECEIVED, (one,), 1000.0 * second) for one in ("eth0", "eth1", "lo")]
        site.state.update(Batch("network", [*traffic, Sample(SENT, ("eth0",), 70.0 * second)]))
        site.rates.record(house.now.monotonic)
    host = overview(site)["host"]
    assert host["cpu_ratio"] == 0.25
    assert (host["receive_bytes_per_second"], host["transmit_bytes_per_second"]) == (2000.0, 70.0)


def alert(
    name: str, severity: str, after: float = 0.0, *, silenced: bool = False, run: str = "", **labels: str
) -> Alert:
    return Alert(name, severity, WALL + after, run, labels, f"{name}!", silenced=silenced)


def test_firing_alerts_are_listed_the_worst_first_with_the_ids_of_the_history(site: Site, house: RunsHarness) -> None:
    house.hello(session := FakeSession("id-1"))
    site.keep(session_opened(session.id, session.hello(), "train", 0, WALL))
    fires = [
        alert("SlowStep", "info", run="id-1"),
        alert("HostDisk", "warning", mountpoint="/data"),
        Alert("LossSpike", "warning", WALL + 5, "id-1", {"run": "train", "rank": "3", "key": "loss"}, "it jumped"),
        alert("GpuHot", "critical", 1, silenced=True, gpu="0", uuid="GPU-1"),
    ]
    site.firing.accept(Batch("alerts", records=fires))
    assert {one["id"] for one in overview(site)["alerts"]} == {None}
    site.keep(*fires)
    reported = overview(site)
    assert [one["alert"] for one in reported["alerts"]] == ["LossSpike", "HostDisk", "SlowStep", "GpuHot"]
    kept = {one["id"]: one["alert"] for one in site.client().get("/api/v1/alerts", headers=site.key).json()["alerts"]}
    assert {one["id"]: one["alert"] for one in reported["alerts"]} == kept
    spike, disk = reported["alerts"][:2]
    del spike["id"], disk["id"]
    assert spike == {
        "alert": "LossSpike",
        "severity": "warning",
        "run": "id-1",
        "name": "train",
        "rank": 3,
        "key": "loss",
        "summary": "it jumped",
        "started": WALL + 5,
        "silenced": False,
    }
    assert disk["subject"] == "/data"
    assert reported["runs"][0]["alerts"] == {"critical": 0, "warning": 1, "info": 1}


def test_an_alert_that_does_not_fire_any_more_is_not_listed(site: Site) -> None:
    one = alert("HostDisk", "warning", mountpoint="/data")
    site.firing.accept(Batch("alerts", records=[one]))
    over = Alert(one.alert, "critical", one.started, labels=one.labels, ended=WALL + 9)
    site.firing.accept(Batch("alerts", records=[over]))
    assert overview(site)["alerts"] == []


def test_a_history_that_cannot_be_read_removes_only_its_own_part(
    site: Site, house: RunsHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.hello(session := FakeSession("id-1"), total_steps=10)
    house.push(session, {"loss": 2.5}, 5)
    site.firing.accept(Batch("alerts", records=[alert("HostDisk", "warning")]))
    site.rates.record(house.now.monotonic)

    def damaged(*_: object) -> None:
        raise ValueError("a damaged log row")

    monkeypatch.setattr(module, "sparkline", damaged)
    monkeypatch.setattr(AlertIds, "read", damaged)
    for _ in range(2):
        reported = overview(site)
        assert (reported["runs"][0]["loss"], reported["alerts"][0]["alert"]) == (2.5, "HostDisk")
    assert len([line for line in caplog.messages if "cannot be read: a damaged log row" in line]) == 1


def test_a_curve_of_any_length_is_short_and_even_and_ends_with_the_newest() -> None:
    for steps in (1, 59, 60, 61, 121, 10_000):
        curve = LossCurve(late=False)
        for step in range(steps):
            curve.add(step, float(step))
            assert len(curve.sparkline()) <= MAX_POINTS
        shown = [float(one) for one in curve.sparkline()]
        assert (shown[0], shown[-1]) == (0.0, steps - 1)
        gaps = [after - before for before, after in pairwise(shown)][:-1]
        assert not gaps or max(gaps) <= 2 * min(gaps)


def test_a_curve_has_no_step_twice_and_none_that_is_older() -> None:
    curve = LossCurve(late=True)
    curve.add(5, 1.0)
    curve.add(5, 2.0)
    curve.add(4, 3.0)
    assert curve.needs_history
    curve.add_history([(1, 9.0), (5, 8.0)])
    assert curve.sparkline() == [9.0, 1.0]
    assert not curve.needs_history


def test_a_curve_without_a_line_is_read_again_from_the_history() -> None:
    curve = LossCurve(late=False)
    curve.add_history([])  # the history has not committed the rows yet
    curve.add(11, 0.25)
    assert curve.needs_history
    curve.add_history([(10, 0.5), (11, 0.25)])
    assert curve.sparkline() == [0.5, 0.25]
    assert not curve.needs_history


def test_counters_that_fall_begin_anew() -> None:
    counters = CounterGroup()
    for time, value in ((0.0, 5.0), (1.0, 7.0), (2.0, 1.0)):
        counters.add(time, (value,))
    assert counters.growth() == (0.0, ())
    counters.add(4.0, (9.0,))
    assert counters.growth() == (2.0, (8.0,))


def test_counters_that_grow_seldom_are_reckoned_from_one_growth_to_the_next() -> None:
    counters = CounterGroup()
    for number in range(4):
        counters.add(60.0 * number, (1000.0 * number,))
    assert counters.growth() == (60.0, (1000.0,))
    assert not counters.is_idle(now=4 * 60.0)
    assert counters.is_idle(now=7 * 60.0)


def test_it_is_json_of_one_line(site: Site, house: RunsHarness) -> None:
    house.hello(FakeSession("id\n1", name="a\nb\ud800"))
    body = site.client().get("/api/v1/overview", headers=site.key).content
    assert b"\n" not in body
    assert json.loads(body)["runs"][0]["name"] == "a\nb?"
