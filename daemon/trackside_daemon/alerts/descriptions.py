"""What each alert means, in the words of a Prometheus rule: the same for all that Alertmanager puts into one message.

The daemon's own words name ranks, steps and numbers, which a label must not. `trackside alerts show` has them.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "Trackside"
"""Of the name of every alert outside the daemon, in Prometheus and Alertmanager, but of the Watchdog's."""


class Said(NamedTuple):
    """The words for an alert.

    Attributes:
        summary: What it is: one sentence, the same for every run, rank and GPU.
        description: What it means and what to look at, for those that only the daemon finds; rules have their own.
    """

    summary: str
    description: str = ""


DETECTED = {
    "NonFinite": Said(
        "A value of the training is NaN or infinite.",
        "A loss, a gradient norm or a loss of evaluation is no number any more; steps from here on are mostly lost. Stop the "
        "run, and go on from the last checkpoint before it.",
    ),
    "LossSpike": Said(
        "The loss has jumped.",
        "It stays above what it was, and not for one batch only. If it does not come back within some hundred steps, go "
        "back to a checkpoint before it and skip those batches.",
    ),
    "LossHardBatch": Said("A single batch had a high loss.", "Nothing is to be done unless it comes often."),
    "LossDiverging": Said(
        "The loss rises and does not come back.",
        "Stop the run, go back to the checkpoint before the rise, and try a lower learning rate or a longer warm-up.",
    ),
    "LossPlateau": Said("The loss does not fall any more.", "It may be done; else look at the learning rate."),
    "LossRestart": Said(
        "The loss began anew.",
        "The run was resumed from a checkpoint and has not caught up, or the checkpoint was not loaded at all.",
    ),
    "GradientExplosion": Said(
        "The norm of the gradients has exploded.",
        "It is many times what it was. Clipping makes single ones harmless; look at the loss and at the batch of that step.",
    ),
    "GradientVanishing": Said(
        "The norm of the gradients has vanished.",
        "Hardly anything is learnt. Look for parameters that are frozen or detached, and for a saturated loss scale.",
    ),
    "LearningRateOutOfRange": Said(
        "The learning rate is out of range.",
        "It is zero, negative, or far beyond what it was. Look at the schedule: total steps, warm-up, and its unit.",
    ),
    "SlowStep": Said(
        "A step took much longer than usual.",
        "It is no pause that comes regularly. Look at the time by phase, and at the disk and network of that minute.",
    ),
    "ThroughputRegression": Said(
        "Steps have become slower.",
        "All of them, and for long. Look at clocks and temperatures of the GPUs, at the data loader's wait, and at other "
        "processes on these machines.",
    ),
    "TrainingStalled": Said(
        "The training makes no steps.",
        "It is silent for longer than its own pace and phases explain. trackside alerts show says which rank is "
        "not where the others wait, and has the stacks.",
    ),
    "RankSilent": Said(
        "A rank is silent while others go on.",
        "It pushes nothing. Look at its process: it may hang, or wait for a disk.",
    ),
    "StragglerRank": Said(
        "One rank is slower than the others.",
        "By its own time, without that in which it waits for others; all go at its pace. Look at its GPU's clocks and "
        "temperature, and at the CPUs and the data loader of its machine.",
    ),
    "DataLoaderBottleneck": Said(
        "The training waits for data.",
        "Look at the number of workers, at their CPU time, and at the disk or network that the data comes from.",
    ),
    "CheckpointOverdue": Said(
        "The training has saved no checkpoint for long.",
        "It used to save more often; a crash now costs all since the last one. Look at the disk, and for errors in its log.",
    ),
    "TrainingProcessDied": Said(
        "A training process has died.",
        "It ended without finishing its run. The evidence has the signal or the exit status, and the last lines that it wrote.",
    ),
    "OomKilled": Said(
        "The OOM killer killed a process.",
        "The kernel had no memory left, in the host or within the limit of the cgroup. Look at what grew before.",
    ),
    "HostMemoryLeak": Said(
        "The memory of a training process grows without end.",
        "Look at what keeps references from step to step: losses that were not detached, lists of logs, caches.",
    ),
    "GpuMemoryLeak": Said(
        "The GPU memory of a training process grows without end.",
        "Look for tensors that are kept with their graph; torch.cuda.memory_snapshot() says where they were allocated.",
    ),
    "MonitorBlind": Said(
        "Trackside does not see everything.",
        "What was pushed is lost, or a part of the daemon fails. Its log has the reason.",
    ),
    "RunStarted": Said("A run has begun.", "Nothing is to be done."),
    "RunRestarted": Said("A run was restarted.", "A new attempt begins. Nothing is to be done unless nobody meant to."),
    "RunFinished": Said("A run has finished.", "How long it took, and its loss, are in the history."),
    "UserAlert": Said(
        "The training code raised an alert.",
        "Its title and text are words for people, and are on no label: `trackside alerts show` and /api/v1/alerts have them.",
    ),
    "TestAlert": Said("This is a test.", "Somebody ran trackside test-alert. Nothing is to be done."),
}
"""What is found by looking at every sample, and so is seen by Prometheus as `trackside_alert_firing` only."""

RULED = {
    "GpuLost": Said("A GPU does not answer."),
    "GpuMissing": Said("GPUs of a machine are missing."),
    "GpuXid": Said("A GPU had an Xid error."),
    "GpuEccUncorrectable": Said("A GPU had memory errors that could not be corrected."),
    "GpuRowRemap": Said("A GPU has to replace a row of its memory."),
    "NvlinkDegraded": Said("NVLinks of a GPU are down or have errors."),
    "GpuHot": Said("A GPU is too hot."),
    "GpuThrottled": Said("A GPU is slowed down by its hardware."),
    "GpuPowerCapped": Said("A GPU is at its power limit."),
    "GpuMemoryPressure": Said("The memory of a GPU is nearly full."),
    "GpuIdleButHeld": Said("A GPU does nothing, and its memory is held."),
    "GpuUnderutilized": Said("A GPU under training is little used."),
    "PcieDegraded": Said("A GPU under training has fewer PCIe lanes than it could."),
    "InfinibandDegraded": Said("An InfiniBand port is down or went down."),
    "HostMemoryPressure": Said("A host is short of memory."),
    "IoBottleneck": Said("A host waits for its disks."),
    "CpuSaturated": Said("There are too few CPUs for what runs."),
    "ContainerMemoryPressure": Said("A container is near its memory limit."),
    "OomKilled": DETECTED["OomKilled"],
    "DiskFilling": Said("A file system is nearly full."),
    "FilesystemDead": Said("A file system does not answer."),
    "ShmFull": Said("/dev/shm is nearly full."),  # noqa: S108  only named
    "FdsExhausted": Said("A rank has nearly all of its file descriptors open."),
    "DataLoaderDied": Said("Workers of a data loader died."),
}
"""What is found by a rule over families, which Prometheus judges by itself."""
