"""Rules for GPUs: their errors, what slows them down, and their use.

| alert | why this threshold |
|---|---|
| GpuLost | a GPU that is lost for 10 s does not recover; shorter is a slow driver |
| GpuMissing | for five minutes fewer GPUs than expected, none of them is reported as lost, and no call to the driver hangs |
| GpuXid | errors that need a reset, a drain or a replacement by NVIDIA's guide are critical; errors of the application and unknown ones are warnings; 45, the cleanup after another error, is info |
| GpuEccUncorrectable | data was wrong, so one error is enough; where an Xid error reports it, GpuXid fires instead |
| GpuRowRemap | pending: the next reset replaces the row; failed: no spare rows are left |
| NvlinkDegraded | healthy links never need recovery; corrected errors happen, but not a hundred in ten minutes |
| GpuHot | for a minute, within 5 degrees of the temperature at which the GPU slows itself down: by the margin that GPUs report since Ada, by the threshold that older ones report, otherwise near the 87 to 90 degrees of most boards |
| GpuThrottled | the hardware reduces the clocks for half of a minute, because of heat or power, never a setting |
| GpuPowerCapped | a busy GPU spends most of ten minutes at its power limit, so info |
| GpuMemoryPressure | frameworks keep memory that they have allocated once, so a full GPU can be normal: info |
| GpuIdleButHeld | no work for ten minutes while gigabytes are in use: a process that hangs, waits or was forgotten |
| GpuUnderutilized | a mean below 30 % over five minutes, which is longer than most cycles, while its rank makes steps, and its run does not generate its own data |
| PcieDegraded | fewer lanes than possible for five minutes, while its rank makes steps: an idle link gets slower, not narrower |

An alert about an event fires as long as the event is within the window of ten minutes. A hot GPU is throttled because of the
heat, so GpuHot inhibits GpuThrottled.
"""

from dataclasses import replace

from trackside_daemon.alerts.rules.query import Matcher, Operator, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.alerts.settings import ThresholdsSection
from trackside_daemon.model.families import gpu, nvml
from trackside_daemon.model.families import training as f
from trackside_daemon.model.families.rl import TOTALS

GPU = ("gpu", "uuid")
MINUTE = 60.0
LATELY = 600.0

FATAL = "46|48|62|64|74|79|92|94|95|119|120|140"
MEMORY = "48|63|64|92|94|95"  # xid errors that report an uncorrectable error of the memory in detail
APPLICATION = "13|31|43"
CLEANUP = "45"  # follows another error, or the end of a process
CORRECTED = "crc.*|replay|ecc"

CORE = (Matcher("sensor", "gpu"),)
SLOWDOWN = (Matcher("threshold", "slowdown"),)
# Reasons whose time drivers count. They report `hw_slowdown`, which covers both, only as a current state.
COUNTED = (Matcher("reason", "hw_thermal|hw_power_brake", "=~"),)
ACTIVE = (Matcher("reason", "hw_slowdown|hw_thermal|hw_power_brake", "=~"),)
POWER_CAP = (Matcher("reason", "sw_power_cap"),)

IDLE = 0.005  # utilization below which a GPU counts as idle; the driver reports whole percents
STEPS = Query(f.STEPS, function="rate", window=300.0, above=0.0)
# Selects the GPUs whose rank makes steps.
TRAINS = Query(gpu.RANK_INFO, on=("run", "rank"), only=(STEPS,))
RUNS = Query(gpu.RANK_INFO, on=GPU)
# A training that generates its own data uses some GPUs only for that, and others only for the rest of the step.
GENERATES = Query(TOTALS["generation_seconds"])
ONLY_TRAINS = replace(TRAINS, only=(replace(STEPS, on=("run",), unless=(GENERATES,)),))


def rules(thresholds: ThresholdsSection) -> dict[str, list[Rule]]:
    """Return the rules by subsystem, an inhibiting rule before those that it inhibits."""
    return {
        "gpu_errors": _errors(),
        "gpu_speed": [*_nvlink(thresholds), *_slowed(thresholds)],
        "gpu_use": _use(thresholds),
    }


def _errors() -> list[Rule]:
    def xids(pattern: str, operator: Operator = "=~") -> Query:
        return Query(gpu.XID_ERRORS, (Matcher("xid", pattern, operator),), "change", LATELY, fresh=True, above=0.0)

    xid = "GPU {gpu} had Xid {xid}, {value:whole} in the last {window}"
    lost = Query(gpu.UP, below=0.5)
    missing = Query(nvml.EXPECTED, minus=Query(nvml.VISIBLE), above=0.5, unless=(lost, Query(nvml.STUCK, above=0.5)))
    uncorrected, by_xid = (Matcher("kind", "uncorrected"),), (xids(MEMORY),)
    damaged = Query(gpu.ECC_ERRORS, uncorrected, "change", LATELY, on=GPU, by=GPU, above=0.0, unless=by_xid)
    pending, failed = Query(gpu.ROW_REMAP_PENDING, above=0.5), Query(gpu.ROW_REMAP_FAILED, above=0.5)
    return [
        Rule(
            "GpuLost",
            "critical",
            lost,
            "GPU {gpu} does not answer: it fell off the bus, hangs or was removed",
            lasting=10.0,
        ),
        Rule("GpuMissing", "critical", missing, "{value:whole} of the machine's GPUs are missing", lasting=300.0),
        Rule("GpuXid", "critical", xids(FATAL), f"{xid}: a hardware error"),
        Rule("GpuXid", "warning", xids(APPLICATION), f"{xid}: an application error"),
        Rule("GpuXid", "warning", xids(f"{FATAL}|{APPLICATION}|{CLEANUP}", "!~"), xid, variant="other"),
        Rule("GpuXid", "info", xids(CLEANUP), f"{xid}: a process was cleaned up"),
        Rule(
            "GpuEccUncorrectable",
            "critical",
            damaged,
            "GPU {gpu} had {value:whole} uncorrectable memory errors in the last {window}",
        ),
        Rule("GpuRowRemap", "warning", pending, "GPU {gpu} replaces a row of its memory at its next reset"),
        Rule("GpuRowRemap", "critical", failed, "GPU {gpu} could not replace a row of its memory"),
    ]


def _nvlink(thresholds: ThresholdsSection) -> list[Rule]:
    up = gpu.NVLINK_LINKS_UP
    down = Query(gpu.NVLINK_LINKS, minus=Query(up), on=GPU, above=0.5, only=(Query(up, above=0.5),))

    def errors(kind: Matcher, above: float) -> Query:
        return Query(gpu.NVLINK_ERRORS, (kind,), "change", LATELY, by=GPU, above=above)

    return [
        Rule(
            "NvlinkDegraded",
            "warning",
            down,
            "GPU {gpu} has {value:whole} of its NVLinks down, while others are up",
            lasting=60.0,
            variant="down",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            errors(Matcher("error", "recovery"), 0.0),
            "NVLinks of GPU {gpu} had to recover {value:whole} times in the last {window}",
            variant="recovered",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            errors(Matcher("error", CORRECTED, "=~"), thresholds.nvlink_errors),
            "NVLinks of GPU {gpu} had {value:whole} errors in the last {window}",
        ),
    ]


def _slowed(thresholds: ThresholdsSection) -> list[Rule]:
    temperature, threshold = gpu.TEMPERATURE, Query(gpu.TEMPERATURE_THRESHOLD, SLOWDOWN)
    margin, most = Query(gpu.THERMAL_MARGIN, SLOWDOWN), thresholds.gpu_hot_margin_celsius
    hot = (
        ("margin", replace(margin, by=GPU, below=most), "{value:below} the temperature at which it slows down"),
        (
            "threshold",
            Query(temperature, CORE, minus=threshold, on=GPU, by=GPU, above=-most, unless=(margin,)),
            "{value:above} the temperature at which it slows down",
        ),
        (
            "fixed",
            Query(temperature, CORE, on=GPU, by=GPU, above=thresholds.gpu_hot_celsius, unless=(margin, threshold)),
            "at {value} degrees Celsius",
        ),
    )
    most = thresholds.gpu_throttled_ratio
    throttled = {
        "counted": Query(gpu.CLOCK_LIMITED, COUNTED, "rate", MINUTE, by=GPU, above=most),
        "seen": Query(gpu.CLOCK_LIMIT_ACTIVE, ACTIVE, "mean", MINUTE, by=GPU, above=most),
    }
    return [
        *(
            Rule("GpuHot", "warning", when, f"GPU {{gpu}} is {text}", "", MINUTE, MINUTE, variant=variant)
            for variant, when, text in hot
        ),
        *(
            Rule(
                "GpuThrottled",
                "warning",
                when,
                "the hardware reduced the clocks of GPU {gpu} for {value:percent} of the last {window}",
                keep_firing=MINUTE,
                variant=variant,
                inhibited_by=("GpuHot",),
            )
            for variant, when in throttled.items()
        ),
        Rule(
            "GpuPowerCapped",
            "info",
            Query(gpu.CLOCK_LIMITED, POWER_CAP, "rate", LATELY, by=GPU, above=thresholds.gpu_power_capped_ratio),
            "GPU {gpu} was at its power limit for {value:percent} of the last {window}",
            inhibited_by=("GpuHot", "GpuThrottled"),
        ),
    ]


def _use(thresholds: ThresholdsSection) -> list[Rule]:
    memory, lanes, most = Query(gpu.MEMORY), Query(gpu.PCIE_LINK_MAX_WIDTH), thresholds.gpu_memory_ratio
    used = Query(gpu.UTILIZATION, (), "mean", 300.0, on=GPU, by=GPU)
    held = Query(gpu.MEMORY_USED, above=thresholds.gpu_held_bytes)
    return [
        Rule(
            "GpuMemoryPressure",
            "info",
            Query(gpu.MEMORY_USED, over=memory, on=GPU, by=GPU, above=most),
            "GPU {gpu} has {value:percent} of its memory in use",
            lasting=120.0,
        ),
        Rule(
            "GpuIdleButHeld",
            "warning",
            replace(used, window=600.0, below=IDLE, only=(held,)),
            "GPU {gpu} had no work for 10 min while its memory is in use",
            of_run=RUNS,
        ),
        Rule(
            "GpuUnderutilized",
            "warning",
            replace(used, below=thresholds.gpu_underutilized_ratio, only=(ONLY_TRAINS,)),
            "GPU {gpu} was busy for {value:percent} of the last {window}, while its rank made steps",
            keep_firing=60.0,
            inhibited_by=("GpuIdleButHeld",),
            of_run=RUNS,
        ),
        Rule(
            "PcieDegraded",
            "warning",
            Query(gpu.PCIE_LINK_WIDTH, over=lanes, on=GPU, by=GPU, below=0.99, only=(TRAINS,)),
            "GPU {gpu} has {value:percent} of its PCIe lanes, while its rank makes steps",
            lasting=300.0,
            keep_firing=60.0,
            of_run=RUNS,
        ),
    ]
