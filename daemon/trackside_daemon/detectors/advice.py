"""What to look at next, for each alert."""

from __future__ import annotations

NEXT = {
    "NonFinite": "Look at the batch of that step and at what the loss is made of (a logarithm or a division by zero, "
    "an overflow of half precision), then go on from the last checkpoint before it.",
    "LossSpike": "If it does not come back within some hundred steps, go back to a checkpoint before it and skip those "
    "batches; look at the gradient norm, the learning rate, and the data of that step.",
    "LossHardBatch": "Nothing is to be done unless it comes often; then look at the data of these steps.",
    "LossDiverging": "Stop it and go back to the checkpoint before the loss began to rise; try a lower learning rate, a "
    "longer warm-up, or stronger clipping.",
    "LossPlateau": "If more was expected, look at the learning rate and at the loss of evaluation: it may be done.",
    "LossRestart": "If nobody resumed it from a checkpoint, look at whether the checkpoint was loaded at all.",
    "GradientExplosion": "Look at the loss and at the batch of that step; clipping makes single ones harmless, and a "
    "lower learning rate rarer.",
    "GradientVanishing": "Look at whether the loss still falls, whether parameters are frozen or detached, and whether the "
    "scale of half precision is too low.",
    "LearningRateOutOfRange": "Look at the schedule's configuration: total steps, warm-up, and the unit that it counts in.",
    "SlowStep": "Look at the time by phase, the data loader's wait, and the disk and network of that minute.",
    "ThroughputRegression": "Look at clocks and temperatures of the GPUs, at the data loader's wait, at other processes on "
    "this machine, and at the slowest rank.",
    "HostMemoryLeak": "Look at what keeps references from step to step: losses that were not detached, lists of logs, "
    "caches of the data loader; with a limit, restart from a checkpoint before it is reached.",
}
"""By alert, whole sentences."""
