"""Small models of many kinds that train, and the layers that the detectors name while they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from trackside.rows import Measured
from trackside_daemon.detectors.layers import LayerDetectors, by_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    import trackside
    from trackside.wire import DistributionFrame

KEYS, WIDTH, VOCABULARY = 16, 32, 40


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention with two heads, whose queries may be scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = 1.0

    def forward(self, batch: torch.Tensor) -> Any:
        parts = [one(batch).unflatten(-1, (2, -1)).transpose(1, 2) for one in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(parts[0] * self.scale, *parts[1:], is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):  # type: ignore[misc]
    """A block of a transformer, whose MLP may get scaled inputs."""

    def __init__(self, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), activation(), nn.Linear(64, WIDTH))
        self.scale = 1.0

    def forward(self, batch: torch.Tensor) -> Any:
        batch = batch + self.attn(self.norms[0](batch))
        return batch + self.mlp(self.norms[1](batch) * self.scale)


class Language(nn.Module):  # type: ignore[misc]
    """A language model that learns to continue sequences of numbers."""

    def __init__(self, blocks: int = 2, activation: type[nn.Module] = nn.GELU, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block(activation) for _ in range(blocks)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self) -> torch.Tensor:
        begin, stride = torch.randint(0, VOCABULARY, (8, 1)), torch.randint(1, 4, (8, 1))
        tokens = (begin + stride * torch.arange(KEYS + 1)) % VOCABULARY
        logits = self.head(self.blocks(self.embed(tokens[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Classifier(nn.Module):  # type: ignore[misc]
    """Layers that learn a random function of vectors or images."""

    def __init__(self, *layers: nn.Module, shape: tuple[int, ...] = (16,), classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self._teacher = [torch.randn(torch.Size(shape).numel(), classes)]  # in a list: no part of the model
        self._shape = shape

    def forward(self) -> torch.Tensor:
        batch = torch.randn(32, *self._shape)
        return functional.cross_entropy(self.layers(batch), (batch.flatten(1) @ self._teacher[0]).argmax(1))


class Recurrent(nn.Module):  # type: ignore[misc]
    """A recurrent network that sums a sequence."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(4, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self) -> torch.Tensor:
        batch = torch.randn(16, 12, 4)
        return functional.mse_loss(self.head(self.cell(batch)[0][:, -1]), batch.sum((1, 2)).unsqueeze(1) / 5)


class Autoencoder(nn.Module):  # type: ignore[misc]
    """A network that returns its input, with a narrow layer within."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 20), nn.Sigmoid())

    def forward(self) -> torch.Tensor:
        batch = torch.rand(32, 6) @ torch.rand(6, 20) / 6
        return functional.mse_loss(self.decoder(self.encoder(batch)), batch)


class Residual(nn.Module):  # type: ignore[misc]
    """A convolutional network whose residual branches begin as zero."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.branch = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> Any:
        batch = torch.relu(self.stem(batch))
        return (batch + self.gate * self.branch(batch)).mean((2, 3))


def mlp(activation: type[nn.Module], *, dropout: float = 0.0) -> Classifier:
    middle = [part for _ in range(3) for part in (nn.Linear(48, 48), activation(), nn.Dropout(dropout))]
    return Classifier(nn.Linear(16, 48), activation(), *middle, nn.Linear(48, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "language": Language,
    "deep language": lambda: Language(4, nn.SiLU),
    "tied language": lambda: Language(tied=True),
    "relu language": lambda: Language(2, nn.ReLU),
    "relu": lambda: mlp(nn.ReLU),
    "tanh": lambda: mlp(nn.Tanh),
    "dropout": lambda: mlp(nn.GELU, dropout=0.3),
    "convolutions": lambda: Classifier(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
        shape=(1, 8, 8),
    ),
    "residual": lambda: Classifier(Residual(), nn.Linear(8, 4), shape=(1, 8, 8)),
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "autoencoder": Autoencoder,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
}


def trained(
    run: trackside.Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    change: Callable[[int], object] = lambda _: None,
    *,
    warm_up: int = 20,
    every: int = 8,
) -> list[tuple[str, str, int]]:
    """Train a model, and return alert, layer and step of what the detectors find."""
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / warm_up) if warm_up else 1.0)
    frames: list[DistributionFrame] = []
    frame_of = Measured.frame

    def recorded(measured: Measured) -> DistributionFrame | None:
        frame: DistributionFrame | None = frame_of(measured)
        frames.extend([] if frame is None else [frame])
        return frame

    run.observe(model, optimizer, activations="*", attention="*.attn", every=every)
    with patch.object(Measured, "frame", recorded):  # a run without a daemon moves what waits to a file
        for step in range(steps):
            change(step)
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            rates.step()
            run.push(step=step, loss=1.0)
        run.finish()
    assert len(frames) >= 3 * (steps // every)
    detectors, found = LayerDetectors(), []
    for frame in frames:
        found += [
            (one.finding.alert, one.key, frame.step)
            for one in detectors.evaluate(frame.kind, frame.step, by_layer(frame))
        ]
    return found
