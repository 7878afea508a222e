"""Rules for errors of GPUs.

| alert | why this threshold |
|---|---|
| GpuLost | a GPU that is lost for 10 s does not recover; shorter is a slow driver |
| GpuMissing | for five minutes fewer GPUs than expected, and none of them is reported as lost |
| GpuXid | errors that need a reset, a drain or a replacement by NVIDIA's guide are critical; errors of the application are warnings; all others are info |
| GpuEccUncorrectable | data was wrong, so one error is enough; where an Xid error reports it, GpuXid fires instead |
| GpuRowRemap | pending: the next reset replaces the row; failed: no spare rows are left |
| NvlinkDegraded | healthy links never need recovery; corrected errors happen, but not a hundred in ten minutes |

An alert about an event fires as long as the event is within the window of ten minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import gpu, nvml

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
LATELY = 600.0
FATAL = "48|62|63|64|74|79|92|94|95|119|120|140"
MEMORY = "48|63|64|92|94|95"  # xid errors that report an uncorrectable error of the memory in detail
APPLICATION = "13|31|43"
CORRECTED = "crc.*|replay|ecc"


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [_lost(), _missing(), *_xids(), _ecc(), *_remapped(), *_nvlink(thresholds)]


def _lost() -> Rule:
    return Rule(
        "GpuLost",
        "critical",
        Query(gpu.UP, below=0.5),
        "GPU {gpu} does not answer: it fell off the bus, hangs or was removed",
        lasting=10.0,
    )


def _missing() -> Rule:
    return Rule(
        "GpuMissing",
        "critical",
        Query(
            nvml.EXPECTED,
            minus=Query(nvml.VISIBLE),
            above=0.5,
            unless=(Query(gpu.UP, below=0.5),),
        ),
        "{value:whole} of the machine's GPUs are missing",
        lasting=300.0,
    )


def _xids() -> list[Rule]:
    kinds = (
        Matcher("xid", FATAL, "=~"),
        Matcher("xid", APPLICATION, "=~"),
        Matcher("xid", f"{FATAL}|{APPLICATION}", "!~"),
    )
    fatal, application, other = (
        Query(gpu.XID_ERRORS, (kind,), "change", LATELY, fresh=True, above=0.0) for kind in kinds
    )
    summary = "GPU {gpu} had Xid {xid}, {value:whole} in the last {window}"
    return [
        Rule(
            "GpuXid",
            "critical",
            fatal,
            f"{summary}: a hardware error",
        ),
        Rule(
            "GpuXid",
            "warning",
            application,
            f"{summary}: an application error",
        ),
        Rule(
            "GpuXid",
            "info",
            other,
            summary,
        ),
    ]


def _ecc() -> Rule:
    reported_by_xid = Query(gpu.XID_ERRORS, (Matcher("xid", MEMORY, "=~"),), "change", LATELY, fresh=True, above=0.0)
    return Rule(
        "GpuEccUncorrectable",
        "critical",
        Query(
            gpu.ECC_ERRORS,
            (Matcher("kind", "uncorrected"),),
            "change",
            LATELY,
            on=GPU,
            by=GPU,
            above=0.0,
            unless=(reported_by_xid,),
        ),
        "GPU {gpu} had {value:whole} uncorrectable memory errors in the last {window}",
    )


def _remapped() -> list[Rule]:
    return [
        Rule(
            "GpuRowRemap",
            "warning",
            Query(gpu.ROW_REMAP_PENDING, above=0.5),
            "GPU {gpu} replaces a row of its memory at its next reset",
        ),
        Rule(
            "GpuRowRemap",
            "critical",
            Query(gpu.ROW_REMAP_FAILED, above=0.5),
            "GPU {gpu} could not replace a row of its memory",
        ),
    ]


def _nvlink(thresholds: ThresholdsSection) -> list[Rule]:
    errors = gpu.NVLINK_ERRORS
    some_up = Query(gpu.NVLINK_LINKS_UP, above=0.5)
    return [
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(
                gpu.NVLINK_LINKS,
                minus=Query(gpu.NVLINK_LINKS_UP),
                on=GPU,
                above=0.5,
                only=(some_up,),
            ),
            "GPU {gpu} has {value:whole} of its NVLinks down, while others are up",
            lasting=60.0,
            variant="down",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(errors, (Matcher("error", "recovery"),), "change", LATELY, by=GPU, above=0.0),
            "NVLinks of GPU {gpu} had to recover {value:whole} times in the last {window}",
            variant="recovered",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(
                errors, (Matcher("error", CORRECTED, "=~"),), "change", LATELY, by=GPU, above=thresholds.nvlink_errors
            ),
            "NVLinks of GPU {gpu} had {value:whole} errors in the last {window}",
        ),
    ]
