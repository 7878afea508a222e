"""Errors of a GPU's memory, their repairs, and other signs of a fault."""

import ctypes
from functools import partial
from typing import Any

from trackside_daemon.nvml.readers.unsupported import Unsupported, read_supported
from trackside_daemon.nvml.reading import Value

KINDS = ("corrected", "uncorrected")  # kinds in the order of `NVML_MEMORY_ERROR_TYPE_...`, from 0

# Counters in the order of `NVML_VOLATILE_ECC` and `NVML_AGGREGATE_ECC`, from 0.
COUNTERS = ("ecc_volatile_errors_total", "ecc_errors_total")

RETIRED = ("single_bit", "double_bit")  # causes in the order of `NVML_PAGE_RETIREMENT_CAUSE_...`, from 0


def ecc(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetTotalEccErrors``; not supported while ECC is off."""

    def errors(kind: int, counter: int) -> float:
        return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))

    return read_supported(
        nvml,
        unsupported,
        (
            (family, (name,), partial(errors, kind, counter))
            for counter, family in enumerate(COUNTERS)
            for kind, name in enumerate(KINDS)
        ),
    )


def sram(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetSramEccErrorStatus``; Hopper and later."""
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return [("sram_threshold_exceeded", (), float(bool(status.bThresholdExceeded)))]


def remapped_rows(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetRemappedRows``; Ampere and later, not supported while MIG is on."""
    correctable, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return [
        ("remapped_rows_total", ("correctable",), correctable),
        ("remapped_rows_total", ("uncorrectable",), uncorrectable),
        ("row_remap_pending", (), float(bool(pending))),
        ("row_remap_failed", (), float(bool(failed))),
    ]


def row_remap_banks(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetRowRemapperHistogram``, in banks; Ampere and later."""
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return [("row_remap_banks", (left,), getattr(banks, left)) for left in ("max", "high", "partial", "low", "none")]


def retired_pages(nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetRetiredPages`` and ``nvmlDeviceGetRetiredPagesPendingStatus``; before Ampere."""

    def pages(cause: int) -> float:
        return float(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)))

    def pending() -> float:
        return float(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))

    return read_supported(
        nvml,
        unsupported,
        (
            *(("retired_pages_total", (name,), partial(pages, cause)) for cause, name in enumerate(RETIRED)),
            ("retired_pages_pending", (), pending),
        ),
    )


def persistence(nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
    """Read ``nvmlDeviceGetPersistenceMode``."""
    return [("persistence_mode", (), nvml.nvmlDeviceGetPersistenceMode(handle))]
