"""Fixed texts of every alert, for Prometheus rules and Alertmanager.

These texts are the same for every run, rank and GPU. The daemon's own summaries name ranks, steps and numbers. Rules read them
from `families.TEXT`, and use the fixed texts while that series is missing.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "Trackside"  # prefix of every alert name in Prometheus and Alertmanager, except that of the Watchdog


class AlertText(NamedTuple):
    """Fixed text of one alert.

    Attributes:
        summary: What is wrong, in one sentence.
        description: Meaning and next steps, for alerts that only the daemon finds; rules have their own.
    """

    summary: str
    description: str = ""


# Alerts of detectors, which examine every sample. Prometheus sees them only as `trackside_alert_firing`.
DETECTED = {
    "NonFinite": AlertText(
        "A value of the training is NaN or infinite.",
        "A loss, a gradient norm or an evaluation loss is not a finite number. Most of the work from this step on is lost. "
        "Stop the run, and continue from the last checkpoint before that step.",
    ),
    "LossSpike": AlertText(
        "The loss has jumped.",
        "It stays above its previous level for more than one batch. If it does not come back within a few hundred steps, go "
        "back to a checkpoint before the jump and skip those batches.",
    ),
    "LossHardBatch": AlertText("A single batch had a high loss.", "You need to do nothing unless this happens often."),
    "LossDiverging": AlertText(
        "The loss rises and does not come back.",
        "Stop the run, go back to the checkpoint before the rise, and try a lower learning rate or a longer warm-up.",
    ),
    "LossPlateau": AlertText(
        "The loss has stopped falling.", "The run may be done. If it is not, check the learning rate."
    ),
    "LossRestart": AlertText(
        "The training went back, or its loss is back at its initial value.",
        "The run was resumed from a checkpoint and has not caught up yet, or it did not load its checkpoint.",
    ),
    "GradientExplosion": AlertText(
        "The norm of the gradients has exploded.",
        "It is many times its usual value. With clipping, a single large gradient does no harm. Check the loss and the batch "
        "of that step.",
    ),
    "GradientVanishing": AlertText(
        "The norm of the gradients has vanished.",
        "The model learns almost nothing. Check for frozen or detached parameters and for a loss scale that is too low.",
    ),
    "DeadLayer": AlertText(
        "A layer of the model learns nothing.",
        "Its gradients or its outputs are all zero, while those of other layers are not. Check its initialisation and the learning "
        "rate.",
    ),
    "SaturatedLayer": AlertText(
        "The outputs of a layer are at their bounds.",
        "There its activation function has hardly a gradient. Check the scale of its inputs and weights.",
    ),
    "AttentionCollapse": AlertText(
        "The attention of a layer has collapsed.",
        "Most of its heads attend to single keys, with large logits. Divergence often follows. Try a lower learning rate, or "
        "normalise queries and keys.",
    ),
    "ActivationOutliers": AlertText(
        "The outputs of a layer have grown far beyond what they were.",
        "Those of other layers have not. Divergence often follows. Try a lower learning rate or a normalisation after this layer.",
    ),
    "LayerUpdates": AlertText(
        "The optimizer moves a layer not at all, or far more or less than the others.",
        "Check the optimizer's parameter groups: that the layer is in one, and with which learning rate.",
    ),
    "LearningRateOutOfRange": AlertText(
        "The learning rate is out of range.",
        "It is zero, negative, not finite, too high, or far from its previous value. Check the schedule: its total steps, its "
        "warm-up, and whether it counts steps or epochs.",
    ),
    "NoLearningSignal": AlertText(
        "The policy learns nothing from its rewards.",
        "Within nearly all groups the rewards are equal, so advantages and gradients are zero. Check the reward function and the "
        "difficulty of the prompts.",
    ),
    "TruncationRising": AlertText(
        "The limit of the length cuts the responses, or they have grown suddenly.",
        "A cut answer has no proper reward. Raise the limit, mask such answers, or check whether the reward pays for length.",
    ),
    "TrainInferenceMismatch": AlertText(
        "Training and generation disagree on the probabilities.",
        "The policy is updated with data of another policy. Check the synchronization of the weights, the precision and the "
        "sampling settings.",
    ),
    "KlBlowup": AlertText(
        "The policy runs away.",
        "The KL divergence is far above its level before. Check the reward for a way to cheat, the KL coefficient and the learning "
        "rate, and go back to a checkpoint before the rise.",
    ),
    "RewardCollapse": AlertText(
        "The reward has collapsed.",
        "It lost most of what was learnt and stays low. Go back to a checkpoint before the fall.",
    ),
    "EntropyCollapse": AlertText(
        "The entropy of the policy has left its range.",
        "It fell or rose to a third or three times of before. Healthy runs do this too.",
    ),
    "SlowStep": AlertText(
        "A step took much longer than usual.",
        "No regular pause explains it. Check the time by phase, and the disk and network activity of that minute.",
    ),
    "ThroughputRegression": AlertText(
        "Steps have become slower.",
        "All steps have been slower for a while. Check the clocks and temperatures of the GPUs, the time spent waiting for "
        "data, and other processes on these machines.",
    ),
    "PerformanceRegression": AlertText(
        "A run is slower than its baseline.",
        "Its steps take longer than those of its pinned run, or of the run before of this name. `trackside compare` shows with "
        "intervals what else differs, and `trackside why` where the time of the run goes.",
    ),
    "TrainingStalled": AlertText(
        "The training makes no steps.",
        "It has been silent for longer than its pace and its phases explain. `trackside alerts show TrainingStalled` names "
        "the rank that is not where the others wait, and prints the stacks.",
    ),
    "RankSilent": AlertText(
        "A rank is silent while others continue.",
        "It pushes nothing. Check its process: it may hang, or wait for a disk.",
    ),
    "StragglerRank": AlertText(
        "One rank is slower than the others.",
        "Its own part of a step takes longer, not counting the time it waits for other ranks, and all ranks run at its pace. "
        "Check the clocks and the temperature of its GPU, and the CPUs and the data loader of its machine.",
    ),
    "DataLoaderBottleneck": AlertText(
        "The training waits for data.",
        "Check the number of data loader workers, their CPU time, and the disk or network that the data comes from.",
    ),
    "CheckpointOverdue": AlertText(
        "The training has saved no good checkpoint for a long time.",
        "It used to save more often, or its last checkpoints are damaged. A crash now loses all work since the last good one. "
        "Check the disk, and the output of the training for errors.",
    ),
    "CheckpointDamaged": AlertText(
        "A checkpoint is damaged.",
        "A file of it is missing or cut off, or its content has changed. A training that loads it fails, or continues from wrong "
        "weights. `trackside checkpoints latest RUN --good` prints the path of the newest intact one. Check the disk, and how "
        "the checkpoint is written.",
    ),
    "LossDiscontinuity": AlertText(
        "A resumed training does not continue where it was.",
        "Its loss, gradient norm or learning rate differ from the steps before by more than they usually do, up or down. The "
        "alert names the likely cause: weights, optimizer, scheduler or data that were not restored.",
    ),
    "TrainingProcessDied": AlertText(
        "A training process has died.",
        "It ended without finishing its run. The alert states the cause if it is known: an exception, a signal or an exit "
        "status. The evidence lists the run's latest events. Check the output of the training for the error.",
    ),
    "OomKilled": AlertText(
        "The OOM killer killed a process.",
        "The host, or the cgroup of the process, had no memory left. Check which memory grew before.",
    ),
    "HostMemoryLeak": AlertText(
        "The memory of a training process keeps growing.",
        "Check for references that are kept from step to step: losses that were not detached, lists of logs, caches.",
    ),
    "GpuMemoryLeak": AlertText(
        "The GPU memory of a training process keeps growing.",
        "Check for tensors that are kept with their graph. torch.cuda.memory_snapshot() shows where they were allocated.",
    ),
    "MonitorBlind": AlertText(
        "Trackside misses data.",
        "Pushed values are lost, or a part of the daemon fails, so other alerts may be missing. Check the daemon's log.",
    ),
    "RunStarted": AlertText("A run has begun.", "You need to do nothing."),
    "RunRestarted": AlertText(
        "A run was restarted.", "A new attempt begins. You need to do nothing if the restart was intended."
    ),
    "RunFinished": AlertText("A run has finished.", "Its duration and its loss are in the history."),
    "UserAlert": AlertText(
        "The training code raised an alert.",
        "`trackside alerts show` and /api/v1/alerts have its title and text.",
    ),
    "ModelRegression": AlertText(
        "A checkpoint is slower or less accurate than the first.",
        "`trackside benchmark --watch` measured it. `trackside alerts show` names the checkpoint and the effect. Check what "
        "changed in the model, and compare both checkpoints again on a quiet machine.",
    ),
    "TestAlert": AlertText("This is a test.", "Somebody ran `trackside test-alert`. You need to do nothing."),
}

# Alerts of rules over metric families, which Prometheus can evaluate too.
RULED = {
    "GpuLost": AlertText("A GPU does not answer."),
    "GpuMissing": AlertText("GPUs of a machine are missing."),
    "GpuXid": AlertText("A GPU had an Xid error."),
    "GpuEccUncorrectable": AlertText("A GPU had memory errors that could not be corrected."),
    "GpuRowRemap": AlertText("A GPU has to replace a row of its memory."),
    "NvlinkDegraded": AlertText("NVLinks of a GPU are down or have errors."),
    "GpuHot": AlertText("A GPU is too hot."),
    "GpuThrottled": AlertText("A GPU is slowed down by its hardware."),
    "GpuPowerCapped": AlertText("A GPU is at its power limit."),
    "GpuMemoryPressure": AlertText("The memory of a GPU is nearly full."),
    "GpuIdleButHeld": AlertText("A GPU is idle while its memory is in use."),
    "GpuUnderutilized": AlertText("A GPU under training is mostly idle."),
    "PcieDegraded": AlertText("A GPU under training has fewer PCIe lanes than it could."),
    "InfinibandDegraded": AlertText("An InfiniBand port is down or went down."),
    "RayNodeDead": AlertText("A node of Ray ended unexpectedly."),
    "RayObjectStoreFull": AlertText("The object store of a node of Ray is nearly full."),
    "RayActorsRestarting": AlertText("Ray restarts actors again and again."),
    "HostMemoryPressure": AlertText("A host is short of memory."),
    "IoBottleneck": AlertText("A host waits for I/O."),
    "CpuSaturated": AlertText("There are too few CPUs for the running processes."),
    "ContainerMemoryPressure": AlertText("A container is near its memory limit."),
    "OomKilled": DETECTED["OomKilled"],
    "DiskFilling": AlertText("A file system is nearly full."),
    "FilesystemDead": AlertText("A file system does not answer."),
    "ShmFull": AlertText("/dev/shm is nearly full."),  # noqa: S108  only named
    "FdsExhausted": AlertText("A rank has nearly all of its file descriptors open."),
    "DataLoaderDied": AlertText("Workers of a data loader died."),
}
