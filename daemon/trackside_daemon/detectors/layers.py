"""Detect trouble inside a model, by layer.

In: distributions of weights, gradients, activations and attention, as one rank sends them at some of its steps. Out: detections
with the layer's name as key.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from math import exp, isfinite, log
from statistics import median
from typing import Any

from trackside.packing import unpack
from trackside.wire import DistributionFrame
from trackside_daemon.detectors.base import Detection, Found, Layers
from trackside_daemon.model.recent import Recent
from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import percent

MEASURED, STEPS = 3, 20  # measurements in a row, and steps that they cover, with which a symptom counts
CALM = 2  # measurements without it that end the alert
LAYERS = 8192  # layers to remember

DEAD = 0.9999  # share of zeros of a dead layer

SATURATED = 0.8  # share of the outputs within 2 % of the largest
# Deviation, as a share of the largest, of outputs that are all alike, as of a linear layer with a large bias.
CONSTANT = 0.02
OUTPUTS = 256  # least outputs of a saturated layer: of few ones many may be equal

# Single heads that attend to one key are useful, such as to the previous one: most heads of a layer must do so, and with
# logits that no softmax comes back from.
ENTROPY, LOGIT, HEADS = 0.1, 30.0, 0.5

GREW = 10.0  # growth of the largest output over the usual one
AHEAD = 4.0  # growth, and size, as a multiple of the median of the other layers
EARLIER, KEPT = 3, 16  # earlier measurements, at least and at most
FIRST = 1  # measurements that are left out at the start, when outputs may be zero by initialisation

MORE, LESS = 20.0, 1 / 100  # limits of a layer's update, as a multiple of the usual one
SCALES = 5.0  # robust standard deviations of the layers beyond which it must be, too
COMPARED = 4  # layers that are needed to compare


def by_layer(frame: DistributionFrame) -> Layers:
    """Return the columns of a frame by layer."""
    columns: dict[str, Any] = {name: unpack("f", column) for name, column in frame.columns.items()}
    return {layer: {name: columns[name][place] for name in columns} for place, layer in enumerate(frame.names)}


class LayerAlert:
    """Detector of one kind of trouble in all layers of a rank, a warning: only what lasts for some measurements and steps counts.

    Attributes:
        alert: The alert's name.
        kind: The measurements that show the trouble.
        cured: What to report at its end.
        gradients: The last gradients by layer; for weights only those of the same step.
    """

    alert: str
    kind: str
    cured: str

    def __init__(self) -> None:
        self.gradients: Layers = {}
        self._since = Recent[str, tuple[int, int]](LAYERS)
        self._calm: dict[str, int] = {}

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the trouble of each measured layer as text, empty without it; ``{since}`` in it is the first step."""
        return {name: self._symptom(name, one) for name, one in layers.items()}

    def _symptom(self, layer: str, measured: dict[str, float]) -> str:
        """Return the trouble of one layer, where that does not depend on the others."""
        raise NotImplementedError

    def evaluate(self, step: int, layers: Layers, gradients: Layers) -> Iterator[Found]:
        """Yield the detections in the layers that were measured at a step, with their names as keys."""
        self.gradients = gradients
        for layer, text in self.symptoms(layers).items():
            if not text:
                self._since.pop(layer, None)
                if layer in self._calm:
                    self._calm[layer] += 1
                    if self._calm[layer] >= CALM:
                        del self._calm[layer]
                        yield Found(layer, Detection(self.alert, "warning", 0, self.cured, over=True))
                continue
            count, first = self._since.get(layer, (0, step))
            self._since[layer] = count + 1, min(first, step)
            if layer in self._calm:
                self._calm[layer] = 0
            elif count + 1 >= MEASURED and step - first >= STEPS:
                self._calm[layer] = 0
                yield Found(layer, Detection(self.alert, "warning", 0, text.format(since=f"{first:,}")))


class NoGradient(LayerAlert):
    """`DeadLayer`: a layer has no gradient while others have."""

    alert = "DeadLayer"
    kind = "gradients"
    cured = "the layer has a gradient again"

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the text by layer."""
        alive = any(one["norm"] > 0 for one in layers.values())
        text = "all of its gradients are zero since step {since}, while other layers have some"
        return {name: text if alive and one["norm"] == 0 else "" for name, one in layers.items()}


class NoOutput(LayerAlert):
    """`DeadLayer`: the outputs of a layer are all zero, and it has no gradient as far as gradients are measured."""

    alert = "DeadLayer"
    kind = "activations"
    cured = "the outputs are no longer all zero"

    def _symptom(self, layer: str, measured: dict[str, float]) -> str:
        if not measured["zeros"] >= DEAD:
            return ""
        own = (one["norm"] for name, one in self.gradients.items() if f"{name}.".startswith(f"{layer}."))
        return "" if any(norm > 0 for norm in own) else "all of its outputs are zero since step {since}"


class SaturatedLayer(LayerAlert):
    """`SaturatedLayer`: most outputs of a layer are as large as its largest, where an activation function has no gradient."""

    alert = "SaturatedLayer"
    kind = "activations"
    cured = "most of its outputs are below the largest again"

    def _symptom(self, layer: str, measured: dict[str, float]) -> str:  # noqa: ARG002  all layers are alike
        share, largest = measured.get("saturated", 0.0), measured["largest"]
        if share < SATURATED or measured["size"] < OUTPUTS or measured["std"] <= CONSTANT * largest:
            return ""
        return f"{percent(share)} of its outputs are within 2 % of {largest:.4g}, the largest, since step {{since}}"


class AttentionCollapse(LayerAlert):
    """`AttentionCollapse`: most heads of a layer attend to single keys, with large logits, as before divergence.

    See Zhai et al. 2023, arXiv:2303.06296.
    """

    alert = "AttentionCollapse"
    kind = "attention"
    cured = "its heads attend to several keys again"

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the text by layer; each of *layers* is a head."""
        heads: dict[str, list[dict[str, float]]] = {}
        for name, one in layers.items():
            heads.setdefault(name.rpartition("/")[0], []).append(one)
        return {name: _collapsed(several) for name, several in heads.items()}


def _collapsed(heads: list[dict[str, float]]) -> str:
    collapsed = [one for one in heads if one["entropy"] < ENTROPY and one["logit"] > LOGIT]
    if len(collapsed) <= HEADS * len(heads):
        return ""
    largest = max(one["logit"] for one in collapsed)
    some = f"{len(collapsed)} of its {len(heads)} heads" if len(heads) > 1 else "its head"
    return f"{some} attend to single keys since step {{since}}: the largest logit is {largest:.4g}"


class ActivationOutliers(LayerAlert):
    """`ActivationOutliers`: the largest output of a layer is ten times what it was, and other layers did not grow so."""

    alert = "ActivationOutliers"
    kind = "activations"
    cured = "its largest output is as before"

    def __init__(self) -> None:
        super().__init__()
        self._past = Recent[str, deque[float]](LAYERS)
        self._seen = 0

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the text by layer."""
        self._seen += 1
        if self._seen <= FIRST:
            return {}
        largest = {name: one["largest"] for name, one in layers.items()}
        growth = {name: size / self._usual(name) if self._usual(name) else 0.0 for name, size in largest.items()}
        symptoms = {name: self._text(name, largest, growth) for name in largest}
        for name, text in symptoms.items():
            if not text:  # else the growth would become usual
                self._past[name] = past = self._past.get(name, deque(maxlen=KEPT))
                past.append(largest[name])
        return symptoms

    def _usual(self, name: str) -> float:
        past = self._past.get(name, ())
        return median(past) if len(past) >= EARLIER else 0.0

    def _text(self, name: str, largest: dict[str, float], growth: dict[str, float]) -> str:
        grew, size = growth[name], largest[name]
        if grew < GREW:
            return ""
        others = [other for other in largest if other != name]
        if others and any(now[name] < AHEAD * median(now[other] for other in others) for now in (growth, largest)):
            return ""
        return (
            f"its largest output is {size:.4g} since step {{since}}, {grew:.3g} times the usual {self._usual(name):.4g}"
        )


class UnchangedWeights(LayerAlert):
    """`LayerUpdates`: the weights of a layer with a gradient are exactly as before, while those of others changed."""

    alert = "LayerUpdates"
    kind = "weights"
    cured = "its weights change again"

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, tuple[float, ...]] = {}

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the text by layer."""
        now: dict[str, tuple[float, ...]] = {
            name: (one["mean"], one["std"], one["norm"], one["largest"]) for name, one in layers.items()
        }
        still = {name for name, columns in now.items() if self._before.get(name) == columns}
        moves = 2 * len(still) <= len(now)
        self._before = now if len(now) <= LAYERS else {}
        text = "its weights do not change since step {since}, although they have a gradient: no optimizer may have them"
        learns = {name for name, one in self.gradients.items() if one["norm"] > 0}
        return {name: text if moves and name in still and name in learns else "" for name in now}


class UnlikeUpdates(LayerAlert):
    """`LayerUpdates`: a layer's weights change much more or less than those of the others.

    What is alike in all layers depends on the optimizer: Adam changes each weight by about the learning rate, SGD in
    proportion to the gradient, LAMB in proportion to the weights. So a layer must stand out by all three measures.
    """

    alert = "LayerUpdates"
    kind = "weights"
    cured = "its updates are as those of other layers again"

    def symptoms(self, layers: Layers) -> Mapping[str, str]:
        """Return the text by layer."""
        measures: tuple[dict[str, float], ...] = ({}, {}, {})
        for name, one in layers.items():
            moved, size = one.get("update_ratio", 0.0) * one["norm"], one["size"]
            gradient = self.gradients[name]["norm"] if name in self.gradients else 0.0
            if isfinite(moved) and moved > 0 and size > 0 and gradient > 0:
                for measure, of in zip(measures, (size**0.5, gradient, one["norm"]), strict=True):
                    measure[name] = log(moved / of)
        ratios = [_deviations(measure) for measure in measures]
        return {name: _apart([ratio[name] for ratio in ratios]) if name in ratios[0] else "" for name in layers}


def _deviations(measure: Mapping[str, float]) -> dict[str, float]:
    """Return how far each layer is from the median, as a ratio; 1 if it is not clear of the spread of the others."""
    if len(measure) < COMPARED:
        return dict.fromkeys(measure, 1.0)
    middle, scale = middle_and_spread(measure.values())
    return {
        name: exp(value - middle) if abs(value - middle) > SCALES * scale else 1.0 for name, value in measure.items()
    }


def _apart(ratios: list[float]) -> str:
    if min(ratios) > MORE:
        return f"its updates are {min(ratios):.3g} times those of other layers since step {{since}}"
    if max(ratios) < LESS:
        return f"its updates are {max(ratios):.2g} of those of other layers since step {{since}}"
    return ""


_DETECTORS = (
    NoGradient,
    NoOutput,
    SaturatedLayer,
    AttentionCollapse,
    ActivationOutliers,
    UnchangedWeights,
    UnlikeUpdates,
)

ALERTS = tuple(dict.fromkeys(made.alert for made in _DETECTORS))


class LayerDetectors:
    """The detectors of one rank of one attempt."""

    def __init__(self) -> None:
        self._detectors: tuple[LayerAlert, ...] = tuple(made() for made in _DETECTORS)
        self._gradients: tuple[int, Layers] = -1, {}

    def evaluate(self, kind: str, step: int, layers: Layers) -> Iterator[Found]:
        """Yield the detections in the next measurement, with the names of the layers as keys."""
        if kind == "gradients":
            self._gradients = step, layers
        known = self._gradients[1] if kind != "weights" or self._gradients[0] == step else {}
        for detector in self._detectors:
            if detector.kind == kind:
                yield from detector.evaluate(step, layers, known)
