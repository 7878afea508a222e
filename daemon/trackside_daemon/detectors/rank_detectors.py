"""All detectors of the samples of one rank, evaluated in the order that they need."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from math import isfinite
from operator import lt

from trackside.rl_keys import KEYS as RL
from trackside.rl_keys import is_of_update, meaning
from trackside_daemon.detectors import rl
from trackside_daemon.detectors.base import Column, Context, Detector, Explains, Found, Test
from trackside_daemon.detectors.gradient import Gradient
from trackside_daemon.detectors.key_roles import BY_NAME, KeyRoles
from trackside_daemon.detectors.learning_rate import LearningRate
from trackside_daemon.detectors.loss_diverging import LossDiverging
from trackside_daemon.detectors.loss_plateau import Frozen, LossPlateau, LossRepeats
from trackside_daemon.detectors.loss_restart import LossRestart
from trackside_daemon.detectors.loss_spike import LossSpike
from trackside_daemon.detectors.memory_leak import MemoryLeak
from trackside_daemon.detectors.nonfinite import NonFinite, NonFiniteNorm
from trackside_daemon.detectors.overfitting import Overfitting
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.detectors.slow_step import SlowStep
from trackside_daemon.detectors.throughput import Throughput

# Roles in the order of evaluation: the context of the others comes first.
_ORDER = ("rate", "update", "part", "gradient", "loss", "evaluation", "objective", "duration", "memory", *RL)

# Roles next to which a loss is an objective: it follows a target that moves.
_COMPANIONS = frozenset({"objective", "return", *RL}) - {"kl", "entropy"}

# Quantities that other trainings have as well, such as the divergence of a variational autoencoder. They have detectors only
# next to another quantity of reinforcement learning.
_AMBIGUOUS = frozenset({"kl", "entropy"})

# Quantities that only a policy has which generates answers.
_OF_ANSWERS = frozenset(
    {"response_length", "truncated_ratio", "zero_variance_ratio", "train_inference_mismatch", "importance_ratio"}
)

# Roles whose samples are not pushed with the others: the duration of a step comes with the next step.
_APART = ("", "duration", "memory")

# The detectors of a key of each role.
_DETECTORS: dict[str, tuple[Callable[[DetectorThresholds], Detector], ...]] = {
    "rate": (LearningRate,),
    "part": (NonFiniteNorm,),
    "gradient": (NonFiniteNorm, Gradient),
    "loss": (NonFinite, LossRestart, LossSpike, LossDiverging, LossPlateau, LossRepeats),
    "update": (Frozen,),
    "evaluation": (NonFinite, Overfitting),
    "objective": (NonFinite,),
    "duration": (SlowStep, Throughput),
    "memory": (MemoryLeak,),
    "reward": (rl.RewardCollapse,),
    "reward_std": (rl.ZeroSpread,),
    "kl": (NonFinite, rl.KlBlowup),
    "update_kl": (NonFinite, rl.UpdateKlBlowup),
    "entropy": (NonFinite, rl.EntropyCollapse),
    "response_length": (rl.LengthBlowup,),
    "truncated_ratio": (rl.Truncation,),
    "zero_variance_ratio": (rl.ZeroVariance,),
    "train_inference_mismatch": (rl.Mismatch,),
    "importance_ratio": (rl.ImportanceRatio,),
}

# All alerts that they can detect.
ALERTS = tuple(dict.fromkeys(alert for of in _DETECTORS.values() for made in of for alert in made(DEFAULTS).alerts))

# A rank that pushes the first key gets the second from the daemon, once all ranks have pushed theirs.
SHARDED, WHOLE = "grad_norm_local_squared", "grad_norm"

# A learning rate that rises by more than this factor at once counts as raised: the loss may jump with it.
RAISED = 1.1

KEPT = 64  # steps whose gradient norms and raised rates are kept after their batch

KEYS = 256  # watched keys of a rank, the first that it pushes: a training may invent losses without end


class RankDetectors:
    """The detectors of one rank of one attempt.

    Args:
        thresholds: Where detections begin.
        lost: Least seconds that slow steps lose.
        roles: The roles of the keys.

    Attributes:
        readings: Why a loss is read as an objective, by key. Then it raises at most information, except for NonFinite.
    """

    def __init__(
        self, thresholds: DetectorThresholds = DEFAULTS, *, lost: float = 0.0, roles: KeyRoles = BY_NAME
    ) -> None:
        self.context = Context(lost=lost)
        self.readings: dict[str, str] = {}
        self._thresholds = thresholds
        self._roles = roles
        self._of: dict[str, tuple[Detector, ...]] = {}
        self._total: dict[str, str] = {}
        self._companion = ""
        self._rl: set[str] = set()
        self._step: int | None = None

    @property
    def of_answers(self) -> bool:
        """The policy is a language model: its rank pushes quantities of answers."""
        return bool(self._rl & _OF_ANSWERS)

    def evaluate(self, columns: Mapping[str, Column]) -> Iterator[Found]:
        """Yield the detections in samples that were pushed together, by key; keys without a role are ignored."""
        roles = {key: self._roles.of(key) for key in columns}
        self._companion = self._companion or next((key for key, role in roles.items() if _is_companion(key, role)), "")
        self._rl.update(role for role in roles.values() if role in RL)
        places = sorted((_ORDER.index(role), len(key), key) for key, role in roles.items() if role in _DETECTORS)
        watched = {key: columns[key] for *_, key in places}
        for start, piece in _pieces(watched):
            for key, finding in self._evaluate(piece):
                yield Found(key, finding if not start else finding._replace(at=finding.at + start))

    def _evaluate(self, watched: Mapping[str, Column]) -> Iterator[Found]:
        """Evaluate columns whose steps only rise, so that the context of a step is unique."""
        self._forget_old(watched)
        self._note_losses(watched)
        for key, column in watched.items():
            role = self._roles.of(key)
            if key == SHARDED:
                self._is_total(WHOLE)
            if self._is_layer(key) or (role in RL and not self._counts(key, role)):
                continue
            if role == "rate" and self._is_total(key):
                self._note_rate(column)
            elif role == "gradient":
                self._is_total(key)
            if key not in self._of:
                if len(self._of) >= KEYS:
                    continue
                self._of[key] = tuple(made(self._thresholds) for made in _DETECTORS[self._detected_as(key, role)])
            yield from self._detect(key, column)
            if role == "loss" and self._is_total(key) and not self._roles.stated(key):
                self._note_reading(key)

    def tests(self, alert: str) -> Iterator[tuple[str, Test]]:
        """Yield key and test of what decided at the last samples whether an alert fires, for detectors that state it."""
        for key, of in self._of.items():
            for detector in of:
                if alert in detector.alerts and isinstance(detector, Explains):
                    yield from ((key, test) for test in detector.explain())

    def _detect(self, key: str, column: Column) -> Iterator[Found]:
        rises = self._roles.of(key) == "loss" and (self._is_part(key) or bool(self._companion))
        stated = self._roles.stated(key)
        for detector in self._of[key]:
            for finding in detector.evaluate(column, self.context):
                capped = finding.alert != "NonFinite" and not stated and (rises or _reading(detector))
                yield Found(key, finding._replace(severity="info") if capped else finding)

    def _is_total(self, key: str) -> bool:
        """Return whether a key is about the whole model: of several keys of a role the one with the shortest name is."""
        role = self._roles.of(key)
        known = self._total.get(role)
        if known is None or len(key) < len(known):
            self._total[role] = key
            if role == "rate":
                self.context.learning_rate = None
        return self._total[role] == key

    def _counts(self, key: str, role: str) -> bool:
        """Return whether a key is the one that counts for its quantity of reinforcement learning."""
        known = self._total.setdefault(role, key)
        if _preference(key) < _preference(known):
            self._total[role] = key
        return self._total[role] == key and (role not in _AMBIGUOUS or len(self._rl) > 1)

    def _detected_as(self, key: str, role: str) -> str:
        """Return the role whose detectors a key has."""
        if role == "loss" and self._is_of_policy(key):
            return "objective"
        return "update_kl" if role == "kl" and is_of_update(key) else role

    def _is_of_policy(self, key: str) -> bool:
        """Return whether a loss is one of reinforcement learning, which has no level that it should fall to or stay at."""
        return bool(self._rl - _AMBIGUOUS) and not self._roles.stated(key)

    def _is_part(self, key: str) -> bool:
        """Return whether a loss is a part of another, which may rise while their sum falls."""
        return not self._is_total(key) and self._total["loss"] in key

    def _note_reading(self, key: str) -> None:
        companion = f"{self._companion} is pushed too" if self._companion else ""
        reading = companion or next(filter(None, map(_reading, self._of[key])), "")
        if reading:
            self.readings[key] = reading
        else:
            self.readings.pop(key, None)

    def _is_layer(self, key: str) -> bool:
        """Return whether a key is ``grad_norm/LAYER`` of a rank with ``grad_norm``: one layer of a watched model."""
        whole = self._total.get("gradient")
        return whole is not None and self._roles.of(key) == "gradient" and key.startswith(f"{whole}/")

    def _note_losses(self, watched: Mapping[str, Column]) -> None:
        for key, column in watched.items():
            if self._roles.of(key) == "loss" and self._is_total(key):
                self.context.losses.update(zip(column.steps, column.values, strict=True))

    def _note_rate(self, column: Column) -> None:
        context = self.context
        before = context.learning_rate
        for step, value in zip(column.steps, column.values, strict=True):
            if isfinite(value):
                if before is not None and value > before * RAISED > 0:
                    context.rates_raised.append(step)
                before = context.rates[step] = value
        context.learning_rate = before

    def _forget_old(self, watched: Mapping[str, Column]) -> None:
        """Forget old steps, and all steps if they are made again after a restart from a checkpoint."""
        context = self.context
        first = next(iter(watched), "")
        steps = watched[first].steps if self._roles.of(first) not in _APART else ()
        if len(steps):
            if self._step is not None and steps[0] < self._step:
                context.losses.clear()
                context.gradients.clear()
                context.rates_raised.clear()
                context.rates.clear()
                if context.learning_rate is not None:
                    context.rates[steps[0]] = context.learning_rate
            self._step = steps[-1]
        for by_step in (context.losses, context.gradients, context.rates):
            for step in list(islice(by_step, max(0, len(by_step) - KEPT))):
                del by_step[step]
        del context.rates_raised[:-KEPT]


def _reading(detector: Detector) -> str:
    """Return why a detector reads its loss as an objective; empty if it does not."""
    return detector.reading if isinstance(detector, LossDiverging) else ""


def _is_companion(key: str, role: str) -> bool:
    return role in _COMPANIONS or (role in _AMBIGUOUS and "loss" in key)


def _preference(key: str) -> int:
    """Return how well a key stands for its quantity, 0 for the best; a role that the user states is as good."""
    found = meaning(key)
    return 0 if found is None else found.preference


def _pieces(columns: Mapping[str, Column]) -> Iterator[tuple[int, Mapping[str, Column]]]:
    """Yield the columns, cut where their steps do not rise, each piece with the index of its first row."""
    every = [column.steps for column in columns.values()]
    steps = every[0] if every else ()
    if all(map(lt, steps, islice(steps, 1, None))) or any(len(other) != len(steps) for other in every):
        yield 0, columns
        return
    cuts = [0, *(place for place in range(1, len(steps)) if steps[place] <= steps[place - 1]), len(steps)]
    for start, end in pairwise(cuts):
        cut = slice(start, end)
        piece = {key: Column(one.steps[cut], one.times[cut], one.values[cut]) for key, one in columns.items()}
        yield start, piece
