"""A simulated GPU: its state at one moment, and the values that follow from it, each counter the integral of its gauge."""

import math
from functools import cached_property

import msgspec

from trackside_daemon.nvml.readers.clocks import REASONS
from trackside_daemon.nvml.readers.fields import LIMIT_REASONS, NVLINK_ERRORS, PCIE_ERRORS
from trackside_daemon.nvml.readers.links import CONDITIONS
from trackside_daemon.nvml.reading import Value
from trackside_daemon.nvml.simulation.boards import Board
from trackside_daemon.nvml.simulation.faults import xids

MEAN_UTILIZATION = 0.88
# Waves of the utilization around its mean: amplitudes, whose sum keeps it below 1, and periods in seconds.
WAVES = ((0.06, 90.0), (0.04, 17.0), (0.015, 4.1))

THERMAL_LAG = 15.0  # seconds by which the temperature follows the power
TEMPERATURE_RISE = 38.0  # degrees by which full utilization warms a GPU
FAULT_SPEED = {"hot": 0.62, "throttled": 0.45}  # fraction of its clocks that a GPU keeps with a fault
HEALTHY_SPEED = 0.985

CLOCK_STEP = 15  # megahertz


class SimulatedGpu(msgspec.Struct, frozen=True, dict=True):
    """One GPU at *now* seconds of a monotonic clock."""

    board: Board
    index: int
    now: float
    faults: frozenset[str]  # faults of the GPU
    worker_start: float = 0.0  # start of the worker that reads it, by the same clock

    @cached_property
    def utilization(self) -> float:
        """Utilization, from 0 to 1."""
        return utilization(self.index, self.now)

    @cached_property
    def busy_seconds(self) -> float:
        """Seconds of work from 0 to *now*: the integral of `utilization`."""
        return busy_seconds(self.index, self.now)

    @property
    def worker_busy_seconds(self) -> float:
        """Seconds of work since the worker's start, from which a worker sums them up."""
        return self.busy_seconds - busy_seconds(self.index, self.worker_start)

    @cached_property
    def speed(self) -> float:
        """Fraction of the maximum clocks."""
        return min((FAULT_SPEED[fault] for fault in self.faults if fault in FAULT_SPEED), default=HEALTHY_SPEED)

    @property
    def power(self) -> float:
        """Power draw in watts."""
        return self.board.idle + self._work_power * self.utilization

    @property
    def energy(self) -> float:
        """Joules from 0 to *now*: the integral of `power`."""
        return self.board.idle * self.now + self._work_power * self.busy_seconds

    @property
    def average_power(self) -> float:
        """Mean of `power` over the last second, in watts."""
        busy = self.busy_seconds - busy_seconds(self.index, self.now - 1.0)
        return self.board.idle + self._work_power * busy

    @cached_property
    def temperature(self) -> float:
        """Temperature in degrees Celsius."""
        lagged = utilization(self.index, self.now - THERMAL_LAG)
        if "hot" in self.faults:
            return self.board.slowdown + 8.0 * (lagged - MEAN_UTILIZATION)
        return self.board.cool + TEMPERATURE_RISE * lagged + self.index % 4

    def clock(self, domain: str) -> float:
        """Return a clock in hertz, in the steps that boards have; faults do not slow down the memory."""
        maximum = self.board.clocks[domain]
        return 1e6 * (maximum if domain == "memory" else CLOCK_STEP * math.floor(maximum * self.speed / CLOCK_STEP))

    @property
    def _work_power(self) -> float:
        return (self.board.busy - self.board.idle) * self.speed


def utilization(index: int, now: float) -> float:
    """Return the fraction of time in which the GPU works, from 0 to 1."""
    return MEAN_UTILIZATION + sum(size * math.sin(math.tau * now / period + index) for size, period in WAVES)


def busy_seconds(index: int, now: float) -> float:
    """Return the integral of `utilization` from 0 to *now*."""
    waves = (
        size * period / math.tau * (math.cos(index) - math.cos(math.tau * now / period + index))
        for size, period in WAVES
    )
    return MEAN_UTILIZATION * now + sum(waves)


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
