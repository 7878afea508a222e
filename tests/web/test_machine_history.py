"""The machine over time: the last hour from memory, and what is older, or of a run, from the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from histories import BEGIN, finished, opened

from trackside_daemon.model.families import derived, host
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import MachineSample
from trackside_daemon.model.state import State
from trackside_daemon.web.api.machine_history import MachineHistory

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = host.MEMORY_AVAILABLE
STAT = "cpu 0 0 0 0\ncpu0 {busy} 0 0 {idle} 0 0 0 0\nintr 1\n"


def test_an_hour_is_stored_each_second_as_rates_and_in_buckets(tmp_path: Path, site: Any) -> None:
    state, stat = State(), tmp_path / "stat"
    kept = MachineHistory(state, stat.read_bytes, seconds_kept=100)
    for second in range(250):
        stat.write_text(STAT.format(busy=3 * second, idle=second))
        samples = [Sample(host.CPU_SECONDS, ("user",), 0.5 * second), Sample(MEMORY, (), float(second))]
        if second < 200:
            samples.append(Sample(host.MEMORY, (), 8e9))  # then it is gone
        state.update(Batch("host", samples, complete=True))
        kept.record(float(second), 1000.0 + second)

    def read(family: str, low: float = 0, high: float = 1e9, points: int = 1000) -> list[list[float]]:
        (series,) = kept.read([family], low, high, points)
        return [list(point) for point in series["points"]]

    assert [point[1] for point in read(MEMORY.name)] == [1000.0 + second for second in range(150, 250)]
    assert {point[4] for point in read(host.CPU_SECONDS.name)} == {0.5}
    assert {point[4] for point in read(derived.CPU_CORE_BUSY.name)} == {0.75}
    assert len(read(host.MEMORY.name)) == 50
    buckets = read(MEMORY.name, points=10)
    assert len(buckets) == 10
    assert buckets[3] == [0, 1189.0, 180.0, 189.0, 189.0, 0, 184.5]
    assert [point[1] for point in read(MEMORY.name, 1240, 1242)] == [1240.0, 1241.0, 1242.0]
    assert set(kept.names()) >= {host.CPU_SECONDS.name, MEMORY.name, derived.CPU_CORE_BUSY.name}

    site.machine.record(1.0, 1000.0)
    site.state.update(Batch("memory", [Sample(MEMORY, (), 5.0)]))
    site.machine.record(2.0, 1001.0)
    client = site.client()
    assert MEMORY.name in client.get("/api/v1/machine", headers=site.key).json()["families"]
    found = client.get(f"/api/v1/machine?key={MEMORY.name}", headers=site.key).json()["series"]
    assert found == [{"key": MEMORY.name, "points": [[0, 1001.0, 5.0, 5.0, 5.0, 0, 5.0]]}]


def test_days_and_the_time_of_a_run_come_from_the_history_with_rates(site: Any) -> None:
    heat, work = 'trackside_gpu_temperature_celsius{gpu="0"}', "trackside_host_cpu_seconds_total"
    site.keep(
        *(
            MachineSample(BEGIN + 60.0 * minute, {heat: 30.0 + minute, f'{work}{{mode="user"}}': 30.0 * minute})
            for minute in range(9)
        )
    )
    site.keep(opened("a"), finished("a", after=200.0))

    def read(**params: Any) -> dict[str, list[list[float]]]:
        answer = site.client().get(
            "/api/v1/machine", params={"key": [heat.split("{", maxsplit=1)[0], work], **params}, headers=site.key
        )
        return {series["key"].split("{")[0]: series["points"] for series in answer.json()["series"]}

    days = read(**{"from": BEGIN, "to": BEGIN + 600})
    assert [point[4] for point in days[heat.split("{", maxsplit=1)[0]]] == [30.0 + minute for minute in range(9)]
    assert {point[4] for point in days[work]} == {0.5}, "a counter has its rate"
    assert len(read(**{"from": BEGIN, "points": 3})[heat.split("{", maxsplit=1)[0]]) == 3
    assert [point[1] for point in read(run="a")[heat.split("{", maxsplit=1)[0]]] == [
        BEGIN + 60 * minute for minute in range(4)
    ]
