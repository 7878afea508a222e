"""The thresholds of the detectors."""

from trackside_daemon.config.section import Section
from trackside_daemon.model.setting_types import Seconds, bound, setting, share

STALL_AFTER = 60.0  # seconds of silence that never count as a stall
STRAGGLER_WINDOW = 10.0  # least seconds between two comparisons of the ranks


class DetectorThresholds(Section):
    """Thresholds of the detectors; what exceeds them is a finding."""

    leak_ratio: float = share("HostMemoryLeak, GpuMemoryLeak: minimum growth, as a share of the memory in use.", 0.1)
    loss_spike_scales: float = bound(
        "LossSpike, LossHardBatch: deviation of a loss, in robust standard deviations.", 8.5
    )
    loss_spike_ratio: float = bound(
        "LossSpike, LossHardBatch: deviation of a loss, as a ratio of its level; less if it is more robust standard "
        "deviations.",
        0.17,
    )
    loss_diverging_ratio: float = bound("LossDiverging: rise above the lowest level, as a ratio of that level.", 0.15)
    loss_plateau_ratio: float = share("LossPlateau: improvement that does not count, as a ratio of the loss.", 0.002)
    critical_after: Seconds = setting(
        "LossDiverging, GradientExplosion: time for which it must last until it is critical.", 60.0, ge=0
    )
    gradient_explosion_ratio: float = bound("GradientExplosion: norm, as a multiple of the usual one.", 3.0, least=1.0)
    gradient_vanishing_ratio: float = bound(
        "GradientVanishing: factor by which a norm is smaller than usual.", 10.0, least=1.0
    )
    learning_rate_most: float = bound("LearningRateOutOfRange: maximum learning rate.", 10.0)
    learning_rate_least: float = bound(
        "LearningRateOutOfRange: rate that is too low before the run's end is near.", 1e-8
    )
    learning_rate_jump_ratio: float = bound(
        "LearningRateOutOfRange: sudden increase, as a multiple of the rate before.", 10.0, least=1.0
    )
    collective_ratio: float = bound(
        "CollectiveSlow: duration of an operation, as a multiple of its usual one.", 1.4, least=1.0
    )
    slow_step_ratio: float = bound(
        "SlowStep: duration, as a multiple of the median of the steps before.", 1.5, least=1.0
    )
    slow_step_scales: float = bound("SlowStep: duration above the median, in robust standard deviations.", 11.0)
    throughput_ratio: float = bound(
        "ThroughputRegression: duration of steps, as a multiple of that before.", 1.15, least=1.0
    )
    straggler_ratio: float = bound(
        "StragglerRank: own time for a step, as a multiple of the median rank's.", 1.1, least=1.0
    )
    data_wait_ratio: float = share("DataLoaderBottleneck: share of the time spent waiting for data.", 0.3)
    no_signal_ratio: float = share("NoLearningSignal: share of the groups whose rewards are all equal.", 0.8)
    truncated_ratio: float = share("TruncationRising: share of the responses that the limit cuts.", 0.5)
    mismatch_most: float = bound("TrainInferenceMismatch: maximum difference of the log probabilities, in nats.", 0.3)
    importance_ratio_most: float = bound(
        "TrainInferenceMismatch: mean importance ratio, as a factor from 1.", 2.0, least=1.0
    )
    kl_most: float = bound("KlBlowup: maximum KL divergence from the reference, in nats a token.", 1.0)
    update_kl_most: float = bound(
        "KlBlowup: maximum KL divergence from the policy before the update (approx_kl), in nats.", 0.2
    )
    reward_collapse_ratio: float = share("RewardCollapse: share of the learnt reward that is lost.", 0.5)
    checkpoint_ratio: float = bound(
        "CheckpointOverdue: time since the last one, as a multiple of the usual interval.", 2.0, least=1.0
    )
    checkpoint_after: Seconds = setting(
        "CheckpointOverdue: time without a checkpoint that is always allowed.", 600.0, ge=1
    )


DEFAULTS = DetectorThresholds.model_construct()
"""Also the defaults of each detector: they stand nowhere else."""
