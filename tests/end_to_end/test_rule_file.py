"""The shipped rules over a real daemon's page: every expression can be evaluated, and finds the run or the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from end_to_end.queries import SCRAPED
from processes import ROOT, eventually

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.prometheus import Prometheus
    from processes import Daemon

FILE = ROOT / "deploy" / "prometheus" / "trackside.rules.yml"
DCGM = FILE.with_name("dcgm.rules.yml")
PLAIN = FILE.with_name("plain.rules.yml")

CHOSEN = 'Hostname=~"127.0.0.1|other", gpu=~"0|1"'
BOARD = {
    "GPU Temperature": f"max(DCGM_FI_DEV_GPU_TEMP{{{CHOSEN}}}) by (Hostname, gpu, uuid)",
    "GPU Avg. Temp": f"avg(DCGM_FI_DEV_GPU_TEMP{{{CHOSEN}}})",
    "GPU Power Usage": f"max(DCGM_FI_DEV_POWER_USAGE{{{CHOSEN}}}) by (Hostname, gpu, uuid)",
    "GPU Power Total": f"sum(max(DCGM_FI_DEV_POWER_USAGE{{{CHOSEN}}}) by (gpu))",
    "GPU SM Clocks": f"max(DCGM_FI_DEV_SM_CLOCK{{{CHOSEN}}} * 1000000) by (Hostname, UUID, gpu)",
    "GPU Utilization": f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{CHOSEN}}}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    "Tensor Core Utilization": f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{CHOSEN}}}) by (Hostname, gpu, GPU_I_ID)",
    "GPU Framebuffer Mem Used": f"max(DCGM_FI_DEV_FB_USED{{{CHOSEN}}}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    "GPU Utilization, older": 'DCGM_FI_DEV_GPU_UTIL{instance=~"127.0.0.1:[0-9]+", gpu=~"0|1"}',
    "the variables": "count by (Hostname, gpu) (DCGM_FI_DEV_FB_FREE)",
}
"""The queries of NVIDIA's board 12239, by panel; the second to last is that of its revision 2."""


def test_every_expression_is_evaluated_over_a_real_page(
    start_daemon: Callable[..., Daemon], start_prometheus: Callable[..., Prometheus]
) -> None:
    groups = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
    daemon = start_daemon("--collector.gpu.simulate=2", "--sample.interval=500ms")
    prometheus = start_prometheus(daemon.url, rules=[DCGM, PLAIN])
    with trackside.init("llama", endpoint=daemon.endpoint) as run:

        def shown() -> bool:
            with run.phase("forward"):
                run.push(loss=float("nan"), tokens=100, epoch=2.5, lr=1e-4, grad_norm=1.25)
            return bool(prometheus.query('trackside_alert_firing{alert="NonFinite"} == 1'))

        eventually(shown, pause=SCRAPED)
        found = {
            rule.get("alert", rule.get("record")): prometheus.query(rule["expr"])
            for group in groups
            for rule in group["rules"]
        }
        check_plain_names(prometheus)
    (held,) = [one for one in found["alert:trackside_alert_firing:held20m"] if one.labels["alert"] == "NonFinite"]
    assert (held.labels["run"], held.labels["severity"], held.value) == ("llama", "critical", 1)
    assert [point.labels["run"] for point in found["run:trackside_training_restarts:count1d"]] == ["llama"]
    wrong = [name for name in found if name.startswith("Trackside") and found[name]]
    assert not [name for name in wrong if "Collector" in name or "Sidecar" in name or "Lost" in name], wrong
    check_board(prometheus)


def check_board(prometheus: Prometheus) -> None:
    """Check that NVIDIA's board shows both GPUs, with the values of trackside in the units of DCGM."""
    eventually(lambda: len(prometheus.query(BOARD["the variables"])) == 2, pause=SCRAPED)
    found = {panel: prometheus.query(query) for panel, query in BOARD.items()}
    for panel, points in found.items():
        assert len(points) == (1 if "Avg" in panel or "Total" in panel else 2), panel
    assert {point.labels["Hostname"] for point in found["the variables"]} == {"127.0.0.1"}
    recorded = [rule["record"] for rule in yaml.safe_load(DCGM.read_text(encoding="utf-8"))["groups"][0]["rules"]]
    assert [name for name in recorded if len(prometheus.query(name)) != 2] == []
    ratio = "DCGM_FI_DEV_FB_TOTAL * 1048576 == on (gpu) trackside_gpu_memory_bytes"
    assert len(prometheus.query(ratio)) == 2


def check_plain_names(prometheus: Prometheus) -> None:
    """Check that every plain name has the series of both GPUs or of the rank; the simulated GPUs have no fan."""
    recorded = [rule["record"] for rule in yaml.safe_load(PLAIN.read_text(encoding="utf-8"))["groups"][0]["rules"]]
    expected = {name: 2 if name.startswith("gpu_") else 1 for name in recorded}
    expected |= {"gpu_fan_speed_percent": 0, "memory_allocation_mb": 0}

    def found() -> dict[str, int]:
        names = {name: name.replace("_bucket", '_bucket{le="+Inf"}') for name in recorded}
        return {name: len(prometheus.query(query)) for name, query in names.items()}

    eventually(lambda: found() == expected, pause=SCRAPED)
    assert prometheus.value("training_epoch") == 2.5
    assert prometheus.value("learning_rate") == 1e-4
    assert prometheus.value("gradient_norm") == 1.25
    assert len(prometheus.query("gpu_memory_total_mb * 1048576 == on (gpu) trackside_gpu_memory_bytes")) == 2
