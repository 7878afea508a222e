"""Values of a simulated GPU: every default family that its board has, each counter the integral of its gauge."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trackside_daemon.nvml.readers.clocks import REASONS
from trackside_daemon.nvml.readers.fabric import CONDITIONS
from trackside_daemon.nvml.readers.fields import LIMIT_REASONS, NVLINK_ERRORS, PCIE_ERRORS
from trackside_daemon.nvml.simulation.fault_times import xids

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import Value
    from trackside_daemon.nvml.simulation.simulated_gpu import SimulatedGpu

# Fractions of the utilization in half-precision training, which keeps the tensor cores busy half of the time.
GPM = {
    "graphics_engine_active_ratio": 0.99,
    "sm_active_ratio": 0.84,
    "sm_occupancy_ratio": 0.31,
    "tensor_active_ratio": 0.47,
    "dram_active_ratio": 0.42,
}
PIPES = {"integer": 0.08, "dfma": 0.0, "hmma": 0.46, "dmma": 0.0, "imma": 0.0, "fp64": 0.0, "fp32": 0.12, "fp16": 0.03}
MEMORY_CONTROLLER = 0.55  # fraction of the utilization
# Bytes per second at full utilization: batches come in, and little goes out.
PCIE_TRANSMIT = 0.4e9
PCIE_RECEIVE = 1.6e9

HOPPER_NVLINK_ERRORS = ("crc",)
# Reasons by the fault that causes them, of both `REASONS` and `LIMIT_REASONS`, whose names differ in part.
FAULT_REASONS = {
    "hot": {"hw_slowdown", "sw_thermal", "hw_thermal", "thermal"},
    "throttled": {"hw_slowdown", "sw_power_cap", "hw_power_brake"},
}


def values(gpu: SimulatedGpu) -> list[Value]:
    """Return all values, in the order of `FAMILIES`."""
    return [
        ("up", (), 1.0),
        *_utilization(gpu),
        *_memory(gpu),
        *_thermals(gpu),
        *_power(gpu),
        *_clocks(gpu),
        *_pcie(gpu),
        *(_nvlink(gpu) if gpu.board.links else ()),
        *_health(gpu),
        *(_fabric(gpu) if gpu.board.gpm else ()),
        # No process can run on a GPU that does not exist.
        ("processes", (), 0.0),
        *([("mig_mode", (), 0.0)] if gpu.board.mig else ()),
    ]


def _utilization(gpu: SimulatedGpu) -> list[Value]:
    measured: list[Value] = [
        ("utilization_ratio", (), gpu.utilization),
        ("busy_seconds_total", (), gpu.worker_busy_seconds),
        ("memory_controller_utilization_ratio", (), MEMORY_CONTROLLER * gpu.utilization),
    ]
    if gpu.board.gpm:
        measured += [(family, (), share * gpu.utilization) for family, share in GPM.items()]
        measured += [("pipe_active_ratio", (pipe,), share * gpu.utilization) for pipe, share in PIPES.items()]
    return measured


def _memory(gpu: SimulatedGpu) -> list[Value]:
    size = gpu.board.memory
    reserved = gpu.board.reserved
    used = round(size * (0.72 + 0.05 * math.sin(gpu.now / 40 + gpu.index)))
    return [
        ("memory_bytes", (), size),
        ("memory_used_bytes", (), used),
        ("memory_free_bytes", (), size - reserved - used),
        ("memory_reserved_bytes", (), reserved),
    ]


def _thermals(gpu: SimulatedGpu) -> list[Value]:
    board = gpu.board
    celsius = gpu.temperature
    measured: list[Value] = [("temperature_celsius", ("gpu",), celsius)]
    if board.memory_sensor:
        measured.append(("temperature_celsius", ("memory",), celsius + 6.0))
    measured += [("temperature_threshold_celsius", (name,), value) for name, value in board.thresholds.items()]
    measured += [
        ("thermal_margin_celsius", (name,), board.slowdown + above - celsius) for name, above in board.above.items()
    ]
    return measured


def _power(gpu: SimulatedGpu) -> list[Value]:
    board = gpu.board
    limits = {
        "enforced": board.limit,
        "min": board.least,
        "max": board.limit,
        "default": board.limit,
        "requested": board.limit,
    }
    return [
        ("power_watts", (), gpu.power),
        ("power_average_watts", (), gpu.average_power),
        ("energy_joules_total", (), gpu.energy),
        *(("power_limit_watts", (limit,), watts) for limit, watts in limits.items()),
    ]


def _clocks(gpu: SimulatedGpu) -> list[Value]:
    active = set().union(*(reasons for fault, reasons in FAULT_REASONS.items() if fault in gpu.faults))
    return [
        *(("clock_hertz", (domain,), gpu.clock(domain)) for domain in gpu.board.clocks),
        *(("clock_max_hertz", (domain,), 1e6 * maximum) for domain, maximum in gpu.board.clocks.items()),
        ("performance_state", (), 0.0),
        *(("clock_limit_active", (reason,), float(reason in active)) for reason in REASONS),
        *(
            ("clock_limited_seconds_total", (reason,), gpu.now if reason in active else 0.0)
            for reason in LIMIT_REASONS.values()
        ),
    ]


def _pcie(gpu: SimulatedGpu) -> list[Value]:
    generation = gpu.board.pcie_generation
    return [
        ("pcie_transmit_bytes_total", (), math.floor(PCIE_TRANSMIT * gpu.busy_seconds)),
        ("pcie_receive_bytes_total", (), math.floor(PCIE_RECEIVE * gpu.busy_seconds)),
        *(_pcie_rates(gpu) if gpu.board.gpm else ()),
        ("pcie_link_generation", (), generation),
        ("pcie_link_max_generation", (), generation),
        ("pcie_link_width_lanes", (), 16.0),
        ("pcie_link_max_width_lanes", (), 16.0),
        ("pcie_replays_total", (), 0.0),
        *(("pcie_errors_total", (error,), 0.0) for error in PCIE_ERRORS.values()),
    ]


def _pcie_rates(gpu: SimulatedGpu) -> list[Value]:
    return [
        ("pcie_transmit_bytes_per_second", (), PCIE_TRANSMIT * gpu.utilization),
        ("pcie_receive_bytes_per_second", (), PCIE_RECEIVE * gpu.utilization),
    ]


def _nvlink(gpu: SimulatedGpu) -> list[Value]:
    board = gpu.board
    sent = math.floor(board.link_traffic * gpu.busy_seconds)
    errors = (*NVLINK_ERRORS.values(), *(HOPPER_NVLINK_ERRORS if board.gpm else ()))
    return [
        ("nvlink_transmit_bytes_total", (), sent),
        ("nvlink_receive_bytes_total", (), sent),
        ("nvlink_links", (), board.links),
        ("nvlink_links_up", (), board.links),
        *(("nvlink_errors_total", (error,), 0.0) for error in errors),
        ("nvlink_speed_bytes_per_second", (), board.link_speed),
    ]


def _health(gpu: SimulatedGpu) -> list[Value]:
    uncorrected = float(xids(gpu.faults, gpu.now))
    measured: list[Value] = [
        (family, (kind,), count)
        for family in ("ecc_errors_total", "ecc_volatile_errors_total")
        for kind, count in (("corrected", 0.0), ("uncorrected", uncorrected))
    ]
    measured += [("remapped_rows_total", (cause,), 0.0) for cause in ("correctable", "uncorrectable")]
    measured += [
        ("row_remap_pending", (), float(uncorrected > 0)),
        ("row_remap_failed", (), 0.0),
        *(
            ("row_remap_banks", (spare,), gpu.board.banks if spare == "max" else 0.0)
            for spare in ("max", "high", "partial", "low", "none")
        ),
        ("persistence_mode", (), 1.0),
    ]
    return measured


def _fabric(gpu: SimulatedGpu) -> list[Value]:
    return [
        ("sram_threshold_exceeded", (), 0.0),
        ("recovery_action", (), float(xids(gpu.faults, gpu.now) > 0)),
        ("fabric_state", (), 3.0),
        ("fabric_healthy", (), 1.0),
        *(("fabric_problem", (condition,), 0.0) for condition in ("registration_failed", *CONDITIONS)),
    ]
