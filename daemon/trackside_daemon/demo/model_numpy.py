"""Character model in numpy: one hidden layer over the last characters, with hand-written gradients.

Shapes: B windows in a batch, C characters of context, E numbers in an embedding, H hidden units, V characters in the
vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Parameters = dict[str, NDArray[Any]]

EMBEDDING = 24
HIDDEN = 256
BETA1 = 0.9
BETA2 = 0.99
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
MAX_NORM = 1.0


class NumpyModel:
    """Model of a window's last character from those before it: embeddings, a tanh layer, a softmax.

    It turns off numpy's overflow warnings for the whole process, because trackside reports overflows.

    Attributes:
        context: Characters that a prediction uses; a window has one more.
        batch: Windows per step.
        tokens: Predictions per step.
        size: Number of parameters, about 120,000.
    """

    context = 16
    batch = 512
    tokens = batch

    def __init__(self, vocabulary: int, seed: int) -> None:
        import numpy as np

        np.seterr(over="ignore", invalid="ignore")
        self.parameters = initial(vocabulary, seed, context=self.context)
        self.size = sum(parameter.size for parameter in self.parameters.values())
        self._optimizer = AdamW(self.parameters)

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Learn from a batch; return its loss in nats per character, and the gradient norm before clipping."""
        loss, gradients = loss_and_gradients(self.parameters, windows)
        norm = clip(gradients)
        self._optimizer.step(gradients, learning_rate)
        return loss, norm

    def loss(self, windows: Sequence[bytes]) -> float:
        """Return the cross-entropy in nats per character."""
        x, y = inputs_and_targets(windows)
        _, _, logits = forward(self.parameters, x)
        loss, _ = cross_entropy(logits, y)
        return loss


def initial(vocabulary: int, seed: int, *, context: int) -> Parameters:
    """Return random weights that keep the variance from layer to layer.

    Returns:
        ``embedding`` [V, E], ``hidden`` [C·E, H], ``hidden_bias`` [H], ``output`` [H, V], ``output_bias`` [V].
    """
    import numpy as np

    random = np.random.default_rng(seed)

    def normal(rows: int, columns: int, deviation: float) -> NDArray[Any]:
        return random.normal(0.0, deviation, (rows, columns)).astype(np.float32)

    inputs = context * EMBEDDING
    return {
        "embedding": normal(vocabulary, EMBEDDING, 1.0),
        "hidden": normal(inputs, HIDDEN, inputs**-0.5),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": normal(HIDDEN, vocabulary, HIDDEN**-0.5),
        "output_bias": np.zeros(vocabulary, np.float32),
    }


def inputs_and_targets(windows: Sequence[bytes]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split windows of C+1 codes into inputs [B, C] and the characters that follow them [B]."""
    import numpy as np

    codes = np.frombuffer(b"".join(windows), np.uint8).reshape(len(windows), -1)
    return codes[:, :-1], codes[:, -1]


def forward(parameters: Parameters, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return each layer's output for inputs [B, C]: embedded [B, C·E], hidden [B, H], logits [B, V]."""
    import numpy as np

    embedded = parameters["embedding"][x].reshape(len(x), -1)
    hidden = np.tanh(embedded @ parameters["hidden"] + parameters["hidden_bias"])
    return embedded, hidden, hidden @ parameters["output"] + parameters["output_bias"]


def cross_entropy(logits: NDArray[Any], y: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """Return the mean loss of logits [B, V] against targets [B], in nats, and its gradient by the logits [B, V]."""
    import numpy as np

    rows = np.arange(len(y))
    # Minus its greatest logit, a row's exponentials cannot overflow.
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    loss = float((np.log(sums[:, 0]) - shifted[rows, y]).mean())
    gradient = exponentials / sums
    gradient[rows, y] -= 1.0
    return loss, gradient / len(y)


def loss_and_gradients(parameters: Parameters, windows: Sequence[bytes]) -> tuple[float, Parameters]:
    """Return the mean loss of a batch, and its gradient by each parameter, in the parameter's shape."""
    import numpy as np

    x, y = inputs_and_targets(windows)
    embedded, hidden, logits = forward(parameters, x)
    loss, by_logits = cross_entropy(logits, y)  # [B, V]
    by_hidden = by_logits @ parameters["output"].T * (1.0 - hidden**2)  # [B, H], before the tanh
    by_embedded = by_hidden @ parameters["hidden"].T  # [B, C·E]
    embedding = parameters["embedding"]
    one_hot = np.eye(len(embedding), dtype=embedding.dtype)[x.ravel()]  # [B·C, V]
    return loss, {
        "embedding": one_hot.T @ by_embedded.reshape(-1, embedding.shape[1]),
        "hidden": embedded.T @ by_hidden,
        "hidden_bias": by_hidden.sum(axis=0),
        "output": hidden.T @ by_logits,
        "output_bias": by_logits.sum(axis=0),
    }


def clip(gradients: Parameters) -> float:
    """Scale the gradients in place to a norm of at most `MAX_NORM`; return the norm before."""
    norm = float(sum(float((gradient**2).sum()) for gradient in gradients.values()) ** 0.5)
    if norm > MAX_NORM:
        for name in gradients:
            gradients[name] *= MAX_NORM / norm
    return norm


class AdamW:
    """AdamW: each step moves a parameter by its gradient's running mean over the root of its running mean square."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._mean = {name: 0.0 * parameter for name, parameter in parameters.items()}
        self._square = {name: 0.0 * parameter for name, parameter in parameters.items()}
        self._steps = 0

    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Update the parameters in place."""
        import numpy as np

        self._steps += 1
        # Both means start at zero; these factors undo that bias.
        rate = learning_rate / (1.0 - BETA1**self._steps)
        unbias = 1.0 / (1.0 - BETA2**self._steps)
        for name, gradient in gradients.items():
            self._mean[name] += (1.0 - BETA1) * (gradient - self._mean[name])
            self._square[name] += (1.0 - BETA2) * (gradient**2 - self._square[name])
            self._parameters[name] *= 1.0 - learning_rate * WEIGHT_DECAY
            self._parameters[name] -= rate * self._mean[name] / (np.sqrt(self._square[name] * unbias) + EPSILON)
