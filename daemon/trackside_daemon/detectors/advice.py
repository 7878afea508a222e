"""Advice for each alert: what to check next."""

from __future__ import annotations

# Sentences by alert name.
NEXT = {
    "NonFinite": "Check the batch of that step and the terms of the loss (a logarithm or a division by zero, an overflow in half "
    "precision). Then resume from the last checkpoint before it.",
    "LossSpike": "If the loss does not recover within a few hundred steps, resume from a checkpoint before the spike and skip "
    "those batches. Check the gradient norm, the learning rate and the data of that step.",
    "LossHardBatch": "No action is needed unless it happens often. Then check the data of these steps.",
    "LossDiverging": "Stop the run and resume from the checkpoint before the loss began to rise. Try a lower learning rate, a "
    "longer warm-up or stronger clipping.",
    "LossPlateau": "If you expected more, check the learning rate and the evaluation loss. The training may be done.",
    "LossRestart": "If you did not resume the run on purpose, check whether the checkpoint was loaded.",
    "GradientExplosion": "Check the loss and the batch of that step. Clipping makes single explosions harmless; a lower learning "
    "rate makes them rarer.",
    "GradientVanishing": "Check whether the loss still falls, whether parameters are frozen or detached, and whether the loss "
    "scale of half precision is too low.",
    "LearningRateOutOfRange": "Check the configuration of the schedule: total steps, warm-up, and the unit it counts in.",
    "NoLearningSignal": "Check the reward function and the difficulty of the prompts: with equal rewards in a group its "
    "advantages are zero. Filter such prompts, sample more answers, or give credit for parts.",
    "TruncationRising": "A cut answer gets no reward, whatever it was. Raise the limit of the length, mask such answers, or check "
    "why they grow: the reward may pay for length.",
    "TrainInferenceMismatch": "Check that the generating engine has the weights of this step, and that precision, sampling "
    "settings and chat template agree. Importance sampling corrects a small difference only.",
    "KlBlowup": "Check the reward for a way to cheat, then the KL coefficient and the learning rate. Go back to a checkpoint "
    "before the rise.",
    "RewardCollapse": "Read some answers. Check KL, entropy and length at the step of the fall, and go back to a checkpoint before it.",
    "EntropyCollapse": "Healthy runs do this too. If the reward stops rising, raise the temperature or the entropy bonus.",
    "SlowStep": "Check the time by phase, the wait for the data loader, and the disk and network in that minute.",
    "ThroughputRegression": "Check the clocks and temperatures of the GPUs, the wait for the data loader, other processes on this "
    "machine, and the slowest rank.",
    "DeadLayer": "Check the initialisation and the bias of the layer, and the learning rate: a ReLU whose input is always negative "
    "does not come back. If the layer is not used on purpose, set requires_grad=False.",
    "SaturatedLayer": "Check the scale of the layer's inputs and weights, and the learning rate. Normalise the inputs, or use an "
    "activation function without bounds.",
    "AttentionCollapse": "Check the learning rate and the scale of queries and keys. Normalising them (QK norm) prevents it.",
    "ActivationOutliers": "Check the loss and the gradient norm: divergence often follows. Try a lower learning rate, weight decay or "
    "a normalisation after this layer.",
    "LayerUpdates": "Check the optimizer's parameter groups: that the layer is in one, and with which learning rate. Set "
    "requires_grad=False for a layer that is frozen on purpose.",
    "HostMemoryLeak": "Check what keeps references from step to step: losses that were not detached, lists of logs, caches of the "
    "data loader. If there is a limit, restart from a checkpoint before memory reaches it.",
}
