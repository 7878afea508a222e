"""Boards that can be simulated, from their data sheets and nvidia-smi."""

from typing import NamedTuple

MEBIBYTE = 2**20


class Board(NamedTuple):
    """One kind of GPU: clocks in megahertz, power in watts, temperatures in degrees Celsius."""

    name: str
    architecture: str
    compute_capability: str
    vbios: str
    memory: int  # device memory in bytes
    reserved: int  # device memory that the driver reserves, in bytes
    idle: float  # power without work
    busy: float  # power at full utilization
    limit: float  # highest power limit
    least: float  # lowest power limit
    clocks: dict[str, int]  # maximum clocks by domain
    cool: float  # temperature without work
    slowdown: float  # temperature at which the clocks fall
    thresholds: dict[str, float]  # absolute temperatures by name, which boards before Ada report
    # Degrees of each threshold above the slowdown, by name; boards since Ada report margins to them.
    above: dict[str, float]
    memory_sensor: bool  # whether it measures the memory's temperature
    gpm: bool  # whether it has the novelties of Hopper: profiling metrics, the NVLink fabric, recovery actions
    mig: bool  # whether it supports MIG
    pcie_generation: int
    links: int  # number of NVLinks
    link_speed: float  # speed of one NVLink, in bytes per second
    link_traffic: float  # bytes per second in each direction at full utilization
    banks: int  # memory banks with spare rows


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
