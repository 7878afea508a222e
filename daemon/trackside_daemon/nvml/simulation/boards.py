"""Boards that can be simulated, from their data sheets and nvidia-smi."""

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Board:
    """One kind of GPU: clocks in megahertz, power in watts, temperatures in degrees Celsius.

    Attributes:
        memory: Device memory in bytes.
        reserved: Device memory that the driver reserves, in bytes.
        idle: Power without work.
        busy: Power at full utilization.
        limit: Highest power limit.
        least: Lowest power limit.
        clocks: Maximum clocks by domain.
        cool: Temperature without work.
        slowdown: Temperature at which the clocks fall.
        thresholds: Absolute temperatures by name, which boards before Ada report.
        above: Degrees of each threshold above the slowdown, by name; boards since Ada report margins to them.
        memory_sensor: Whether it measures the memory's temperature.
        gpm: Whether it has the novelties of Hopper: profiling metrics, the NVLink fabric, recovery actions.
        mig: Whether it supports MIG.
        links: Number of NVLinks.
        link_speed: Speed of one NVLink, in bytes per second.
        link_traffic: Bytes per second in each direction at full utilization.
        banks: Memory banks with spare rows.
    """

    name: str
    architecture: str
    compute_capability: str
    vbios: str
    memory: int
    reserved: int
    idle: float
    busy: float
    limit: float
    least: float
    clocks: dict[str, int]
    cool: float
    slowdown: float
    thresholds: dict[str, float]
    above: dict[str, float]
    memory_sensor: bool
    gpm: bool
    mig: bool
    pcie_generation: int
    links: int
    link_speed: float
    link_traffic: float
    banks: int


# Thresholds with T.Limits of -8, -2, 0 and 0.
ABOVE = {"shutdown": 6.0, "slowdown": 0.0, "memory_max": -2.0, "gpu_max": -2.0}

# Boards by the profile's name. The chassis cools all of them, so none has a fan.
BOARDS = {
    "h100": Board(
        name="Simulated H100 80GB HBM3",
        architecture="hopper",
        compute_capability="9.0",
        vbios="96.00.74.00.01",
        memory=81559 * MEBIBYTE,
        reserved=600 * MEBIBYTE,
        idle=95.0,
        busy=640.0,
        limit=700.0,
        least=200.0,
        clocks={"graphics": 1980, "sm": 1980, "memory": 2619, "video": 1545},
        cool=29.0,
        slowdown=87.0,
        thresholds={},
        above=ABOVE,
        memory_sensor=True,
        gpm=True,
        mig=True,
        pcie_generation=5,
        links=18,
        link_speed=26.562e9,
        link_traffic=90e9,
        banks=640,
    ),
    "a100": Board(
        name="Simulated A100-SXM4-80GB",
        architecture="ampere",
        compute_capability="8.0",
        vbios="92.00.45.00.03",
        memory=81920 * MEBIBYTE,
        reserved=617 * MEBIBYTE,
        idle=62.0,
        busy=375.0,
        limit=400.0,
        least=100.0,
        clocks={"graphics": 1410, "sm": 1410, "memory": 1593, "video": 1290},
        cool=28.0,
        slowdown=89.0,
        thresholds={"shutdown": 92.0, "slowdown": 89.0, "memory_max": 95.0, "gpu_max": 85.0},
        above={},
        memory_sensor=True,
        gpm=False,
        mig=True,
        pcie_generation=4,
        links=12,
        link_speed=25e9,
        link_traffic=60e9,
        banks=640,
    ),
    "l40s": Board(
        name="Simulated L40S",
        architecture="ada",
        compute_capability="8.9",
        vbios="95.02.66.00.02",
        memory=46068 * MEBIBYTE,
        reserved=479 * MEBIBYTE,
        idle=34.0,
        busy=325.0,
        limit=350.0,
        least=100.0,
        clocks={"graphics": 2520, "sm": 2520, "memory": 9001, "video": 1965},
        cool=31.0,
        slowdown=90.0,
        thresholds={},
        above=ABOVE,
        memory_sensor=False,
        gpm=False,
        mig=False,
        pcie_generation=4,
        links=0,
        link_speed=0.0,
        link_traffic=0.0,
        banks=192,
    ),
}
