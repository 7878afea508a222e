"""Peak FLOP/s of GPUs by their NVML names."""

from __future__ import annotations

import pytest

from trackside_daemon.nvml.peaks import PEAKS, peak_flops

NAMES = {
    "Tesla V100-SXM2-16GB": 125e12,
    "Tesla V100-PCIE-32GB": 112e12,
    "Tesla T4": 65e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A30": 165e12,
    "NVIDIA A40": 149.7e12,
    "A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H100 PCIe": 756.5e12,
    "NVIDIA H100 NVL": 835.5e12,
    "NVIDIA H200": 989.5e12,
    "NVIDIA H200 NVL": 835.5e12,
    "NVIDIA H20": 148e12,
    "NVIDIA GH200 480GB": 989.5e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181.05e12,
    "NVIDIA L40S": 362.05e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA RTX 6000 Ada Generation": 364.2e12,
    "Simulated H100 80GB HBM3": 989.5e12,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_board_is_found_by_its_name_alone(name: str) -> None:
    assert peak_flops(name) == NAMES[name]
    bare = name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("Simulated ")
    assert sum(one.name.fullmatch(bare) is not None for one in PEAKS) == 1


OTHERS = (
    *("", "NVIDIA A10G", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA L40G", "NVIDIA H100", "NVIDIA H20-3e"),
    *("NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 64GB HBM2", "NVIDIA GB300"),
)


@pytest.mark.parametrize("name", OTHERS)
def test_of_others_nothing_is_guessed(name: str) -> None:
    assert peak_flops(name) is None


def test_each_rate_has_its_source() -> None:
    assert all("data sheet" in one.source or "whitepaper" in one.source for one in PEAKS)
