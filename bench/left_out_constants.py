"""The constants of the detectors that decide whether something is an alarm, by the measure that chooses them.

A name is ``MODULE.CONSTANT`` or ``MODULE.CONSTANT[INDEX]``, with all modules that read it; ``settings.NAME`` is a threshold.

"""

from __future__ import annotations

CONSTANTS: dict[str, tuple[str, ...]] = {
    "loss": (
        "settings.loss_spike_scales",
        "settings.loss_spike_ratio",
        *(f"outlier.{name}" for name in ("NEAR", "USUAL", "RECENT", "CROSSING")),
        *(f"outlier.GREAT[{index}]" for index in range(2)),
        *(f"outlier.{name}" for name in ("UNLIKE", "LIKE", "BLOCK", "BLOCKS", "LOGS", "LOWEST", "GROWN", "SHORTLY")),
        *(f"loss_spike.{name}" for name in ("SEVERAL", "BACK", "GIVEN_UP", "ABOVE[0]", "ABOVE[1]")),
        "settings.loss_diverging_ratio",
        *(f"loss_diverging.{name}" for name in ("LEVEL", "LEAST", "NOISE", "WANDERS", "ACCEPTED")),
        *(f"learnt.{name}" for name in ("FIRST", "BLOCK", "LENGTHS", "KNOWN", "KEPT")),
        "learnt+loss_spike+loss_diverging.MUCH",
        *(f"loss_restart.{name}" for name in ("BEGINNING", "BEFORE", "LEAP", "ANEW[0]", "ANEW[1]", "OVER")),
    ),
    "warning": (
        "learnt+loss_spike+loss_diverging.MUCH",
        *(f"loss_diverging.{name}" for name in ("WANDERS", "LASTS", "GONE", "RECURS", "SIGNS", "BEYOND", "CRITICAL")),
        *(f"learnt.{name}" for name in ("FIRST", "BLOCK", "LENGTHS", "POINTS", "FASTER")),
        *(f"loss_restart.{name}" for name in ("BLOCK", "BLOCKS", "HALF")),
    ),
    "gradient": (
        *(f"settings.gradient_{name}_ratio" for name in ("explosion", "vanishing")),
        *(
            f"gradient.{name}"
            for name in ("NEAR", "LONG", "ENOUGH", "BLOCK", "BLOCKS", "SETTLED", "NOTHING", "VANISHED")
        ),
        *(f"gradient.{name}" for name in ("USUAL", "CALM", "LASTS", "MOSTLY", "AT_ONCE", "OFTEN", "AMONG", "SPARSER")),
    ),
    "time": (
        *(f"settings.{name}" for name in ("slow_step_ratio", "slow_step_scales", "throughput_ratio")),
        *(f"slow_step.{name}" for name in ("BEFORE", "ENOUGH", "LEARNT_PART", "LEARNT_SCALES", "QUANTUM")),
        *(f"slow_step.{name}" for name in ("APART", "CALM", "USUAL", "SPAN")),
        *(f"slow_step.{name}" for name in ("KEPT", "SHORTEST", "OFF", "CROWDED", "NEGLIGIBLE")),
        *(f"slow_step.{name}" for name in ("ALIKE", "CHANCE", "CHANCE_BY_TIME")),
        *(f"throughput.{name}" for name in ("BLOCK", "BEFORE", "ENOUGH", "LASTING", "RETURNED", "USUAL", "SHARE")),
    ),
    "leak": (
        "settings.leak_ratio",
        *(f"memory_leak.{name}" for name in ("BIN", "MERGED", "BINS", "SIZES", "RISING", "FILLING", "STILL")),
        *(f"memory_leak.{name}" for name in ("BEFORE", "BEYOND", "SLOWED", "TWICE")),
    ),
}
