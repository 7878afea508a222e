"""The time limits of readings: after them a GPU, or all of NVML, is given up, and for a while."""

from __future__ import annotations

# Seconds without a sign of life before the first answer: without persistence mode nvmlInit wakes up all GPUs.
INIT_DEADLINE = 60.0
# Seconds without a sign of life after the first answer. Each GPU that the worker starts to read is such a sign.
GPU_DEADLINE = 10.0
# Seconds for all GPUs, even if the worker makes progress; `INIT_DEADLINE` is added for a first answer.
CYCLE_DEADLINE = 60.0
SILENCE_SECONDS = 60.0  # without a reading, for any reason, after which NVML counts as down; at least two intervals

# Each retry that hangs costs all GPUs a worker.
FIRST_QUARANTINE = 60.0  # seconds of quarantine after the first hang; doubled with each
MAX_QUARANTINE = 600.0  # maximum of these seconds
