"""What breaks in a GPU.

| alert | why this threshold |
|---|---|
| GpuLost | one that is lost for 10 s does not come back by itself; less is a driver that was slow |
| GpuMissing | fewer than should be there for five minutes, and none that was there is told as lost |
| GpuXid | the errors after which NVIDIA's guide wants a reset, a drain or a replacement are critical; those of an application are its own; the others are worth a line |
| GpuEccUncorrectable | data was wrong; one is too many, and where an Xid says so that is enough |
| GpuRowRemap | a row is replaced at the next reset only; where that failed there are no spare rows |
| NvlinkDegraded | links that train have recovered from nothing; corrected errors happen, a hundred in ten minutes do not |

What has happened is told for as long as it is within the window, ten minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
LATELY = 600.0
FATAL = "48|62|63|64|74|79|92|94|95|119|120|140"
MEMORY = "48|63|64|92|94|95"
"""Those that say of an error in memory what it was."""
APPLICATION = "13|31|43"
CORRECTED = "crc.*|replay|ecc"


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [_lost(), _missing(), *_xids(), _ecc(), *_remapped(), *_nvlink(thresholds)]


def _lost() -> Rule:
    return Rule(
        "GpuLost",
        "critical",
        Query("trackside_gpu_up", below=0.5),
        "GPU {gpu} does not answer: it is lost, hangs or is gone",
        "Since {since}. Look for Xid 79 and the GPU's bus address in dmesg; it mostly takes a reset or a reboot. "
        "What trains on it hangs or has died.",
        lasting=10.0,
    )


def _missing() -> Rule:
    return Rule(
        "GpuMissing",
        "critical",
        Query(
            "trackside_gpus_expected",
            minus=Query("trackside_gpus_visible"),
            above=0.5,
            unless=(Query("trackside_gpu_up", below=0.5),),
        ),
        "{value:whole} of the machine's GPUs are not there",
        "Since {since}. They were there before, or are on the PCI bus, or collector.gpu.expected counts them. Look at dmesg and "
        "lspci -d 10de:, and reboot the machine; if fewer are right, set collector.gpu.expected.",
        lasting=300.0,
    )


def _xids() -> list[Rule]:
    kinds = (
        Matcher("xid", FATAL, "=~"),
        Matcher("xid", APPLICATION, "=~"),
        Matcher("xid", f"{FATAL}|{APPLICATION}", "!~"),
    )
    fatal, application, other = (
        Query("trackside_gpu_xid_errors_total", (kind,), "change", LATELY, fresh=True, above=0.0) for kind in kinds
    )
    said = "GPU {gpu} had Xid {xid}, {value:whole} in the last {window}"
    return [
        Rule(
            "GpuXid",
            "critical",
            fatal,
            f"{said}: an error of the hardware",
            "Since {since}. NVIDIA's table of Xid errors says whether it takes a reset or a new GPU; "
            "let nothing new be trained on it until then, and look at dmesg and the ECC errors.",
        ),
        Rule(
            "GpuXid",
            "warning",
            application,
            f"{said}: an error of the application",
            "Since {since}. A kernel went beyond its memory or was stopped: look at the run's error and at what was "
            "changed in its code; the GPU is well when others train on it without.",
        ),
        Rule(
            "GpuXid",
            "info",
            other,
            said,
            "Since {since}. NVIDIA's table of Xid errors and dmesg say what it means.",
        ),
    ]


def _ecc() -> Rule:
    told = Query(
        "trackside_gpu_xid_errors_total", (Matcher("xid", MEMORY, "=~"),), "change", LATELY, fresh=True, above=0.0
    )
    return Rule(
        "GpuEccUncorrectable",
        "critical",
        Query(
            "trackside_gpu_ecc_errors_total",
            (Matcher("kind", "uncorrected"),),
            "change",
            LATELY,
            on=GPU,
            by=GPU,
            above=0.0,
            unless=(told,),
        ),
        "GPU {gpu} had {value:whole} uncorrectable memory errors in the last {window}",
        "Since {since}. What was computed from that memory is wrong. Restart the run from its last checkpoint, and reset "
        "the GPU, so that the row is replaced.",
    )


def _remapped() -> list[Rule]:
    return [
        Rule(
            "GpuRowRemap",
            "warning",
            Query("trackside_gpu_row_remap_pending", above=0.5),
            "GPU {gpu} replaces a row of its memory at its next reset",
            "Since {since}. Reset it before the next run: trackside pause-gpu, then nvidia-smi --gpu-reset.",
        ),
        Rule(
            "GpuRowRemap",
            "critical",
            Query("trackside_gpu_row_remap_failed", above=0.5),
            "GPU {gpu} could not replace a row of its memory",
            "Since {since}. Its spare rows are used up where they are needed: have the GPU replaced.",
        ),
    ]


def _nvlink(thresholds: ThresholdsSection) -> list[Rule]:
    errors = "trackside_gpu_nvlink_errors_total"
    look = (
        "Since {since}. Collectives go at the pace of the slowest link: look at nvidia-smi nvlink --status and --errorcounters, "
        "at the fabric manager's log, and for Xid 74."
    )
    down = Query("trackside_gpu_nvlink_links_up", above=0.5)
    return [
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(
                "trackside_gpu_nvlink_links",
                minus=Query("trackside_gpu_nvlink_links_up"),
                on=GPU,
                above=0.5,
                only=(down,),
            ),
            "GPU {gpu} has {value:whole} of its NVLinks down, while others are up",
            look,
            lasting=60.0,
            variant="down",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(errors, (Matcher("error", "recovery"),), "change", LATELY, by=GPU, above=0.0),
            "NVLinks of GPU {gpu} had to recover {value:whole} times in the last {window}",
            look,
            variant="recovered",
        ),
        Rule(
            "NvlinkDegraded",
            "warning",
            Query(
                errors, (Matcher("error", CORRECTED, "=~"),), "change", LATELY, by=GPU, above=thresholds.nvlink_errors
            ),
            "NVLinks of GPU {gpu} had {value:whole} errors in the last {window}",
            look,
        ),
    ]
