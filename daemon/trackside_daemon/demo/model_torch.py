"""Character model in PyTorch: two recurrent layers, on one CPU core.

Shapes: B windows in a batch, C characters of context, V characters in the vocabulary.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

EMBEDDING = 64
HIDDEN = 128
LAYERS = 2
WEIGHT_DECAY = 0.1
MAX_NORM = 1.0


class TorchModel:
    """Model of every character of a window from those before it: embeddings, two GRU layers, a softmax.

    It sets PyTorch's thread count to one for the whole process, so that a demo leaves the machine usable.

    Attributes:
        context: Characters that the last prediction of a window uses; a window has one more.
        batch: Windows per step.
        tokens: Predictions per step.
        size: Number of parameters, about 190,000.
    """

    context = 24
    batch = 16
    tokens = batch * context

    def __init__(self, vocabulary: int, seed: int) -> None:
        with warnings.catch_warnings():
            # A plain `pip install torch` installs no numpy, and this model needs none.
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")
            import torch
            from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._embedding = nn.Embedding(vocabulary, EMBEDDING)
        self._recurrent = nn.GRU(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self._output = nn.Linear(HIDDEN, vocabulary)
        self._parameters = [
            *self._embedding.parameters(),
            *self._recurrent.parameters(),
            *self._output.parameters(),
        ]
        self._optimizer = torch.optim.AdamW(self._parameters, betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY)
        self.size = sum(parameter.numel() for parameter in self._parameters)

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Learn from a batch; return its loss in nats per character, and the gradient norm before clipping."""
        from torch.nn.utils import clip_grad_norm_

        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.zero_grad()
        loss = self._cross_entropy(windows)
        loss.backward()
        norm = clip_grad_norm_(self._parameters, MAX_NORM)
        self._optimizer.step()
        return loss.item(), norm.item()

    def loss(self, windows: Sequence[bytes]) -> float:
        """Return the cross-entropy in nats per character."""
        import torch

        with torch.no_grad():
            return float(self._cross_entropy(windows))

    def _cross_entropy(self, windows: Sequence[bytes]) -> Tensor:
        """Return the mean loss of all predictions in windows of C+1 codes, as a scalar."""
        import torch
        from torch.nn.functional import cross_entropy

        # A bytearray, because PyTorch warns about read-only memory.
        codes = torch.frombuffer(bytearray(b"".join(windows)), dtype=torch.uint8).view(len(windows), -1).long()
        hidden, _ = self._recurrent(self._embedding(codes[:, :-1]))  # [B, C, hidden units]
        logits = self._output(hidden)  # [B, C, V]
        return cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
