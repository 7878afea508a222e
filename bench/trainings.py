"""Make sixty small trainings of twelve problems, healthy ones and ones with a planted fault, to see what the detectors find in them.

Usage: PYTHONPATH=tests:. python bench/trainings.py DIRECTORY [DRAW]

Writes ``PROBLEM/RUN.csv`` and ``index.jsonl`` in the form of the labelled logs. None of the problems is among those, so nothing may
be tuned on them. Each training takes about a second, and is the same each time.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, BATCH, EVERY = 600, 32, 20  # EVERY: steps from one logged learning rate to the next, in half of the runs
ONSET = 0.6
FAULTS = ("lr10", "lr30", "weights", "labels", "restart", "scale", "sorted", "nan")


class Problem(NamedTuple):
    """A model, its data and the loss of a batch.

    Attributes:
        sort: The numbers by which a fault sorts the data.
    """

    make: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    rate: float
    sort: Tensor


def layers(*sizes: int) -> nn.Module:
    """Return a perceptron."""
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*parts[:-1])


class Coder(nn.Module):  # type: ignore[misc]
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = layers(24, 32, 8), layers(4, 32, 24)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the reconstruction, and mean and logarithm of the variance of the code."""
        mean, log = self.up(inputs).chunk(2, -1)
        return self.down(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log


class Attention(nn.Module):  # type: ignore[misc]
    """A transformer of one layer that predicts each next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, 24), nn.Embedding(16, 24)
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(24, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        return self.out(self.layer(self.tokens(inputs) + self.places.weight[: inputs.shape[1]], mask, is_causal=True))


def elbo(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of the bound of the evidence, negative."""
    out, mean, log = model((y + x) % 2)
    entropy = (mean**2 + log.exp() - log - 1).sum(-1).mean() / 2
    return functional.binary_cross_entropy_with_logits(out, y, reduction="none").sum(-1).mean() + entropy


def triplet(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of triplets."""
    code = functional.normalize(model(x), dim=-1)
    far = torch.cdist(code, code)
    same = y[:, None] == y
    return functional.relu((far * same).amax(-1) - (far + 9 * same).amin(-1) + 0.5).mean()


def denoise(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a noise that is predicted."""
    when, added = torch.rand(len(x), 1), torch.randn_like(y)
    mixed = (1 - when).sqrt() * y + when.sqrt() * added
    return functional.mse_loss(model(torch.cat((mixed, when), -1)), added)


def pinball(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a quantile."""
    off = y - model(x)[:, 0]
    return torch.maximum(0.9 * off, -0.1 * off).mean()


def skip_gram(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of words and their neighbours."""
    one, other = model(x), model(y)
    false = model((y * 7 + 3) % 64)
    return -functional.logsigmoid((one * other).sum(-1)).mean() - functional.logsigmoid(-(one * false).sum(-1)).mean()


def cross(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of classes."""
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def poisson(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of counts."""
    return functional.poisson_nll_loss(model(x)[:, 0].clamp(max=5), y)


def masked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of masked values."""
    keep = torch.rand_like(x) > 0.3
    return ((model(x * keep) - y) ** 2)[~keep].mean()


def similar(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of directions, negative."""
    return -functional.cosine_similarity(model(x), y).mean()


def distil(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a teacher's probabilities."""
    return functional.kl_div(model(x).log_softmax(-1), y, reduction="batchmean")


def problems() -> dict[str, Problem]:
    """Return the problems; the seed is set before."""
    count, ids = 2048, torch.arange(2048)
    points, noise = torch.randn(count, 12), torch.randn(count)
    classes = (points @ torch.randn(12, 5)).argmax(-1)
    bits = (torch.rand(8, 24)[classes] + 0.3 * torch.randn(count, 24) > 0.5).float()
    target = points[:, 0] * points[:, 1] + points[:, 2].sin()
    spiral = torch.stack((noise.cos() * noise, noise.sin() * noise), -1)
    language = (ids[:, None] * torch.arange(1, 17) ** 2 // 7 + ids[:, None] % 5) % 12
    graph = (torch.rand(count, 12) < 0.1 + 0.6 * (torch.arange(12) % 5 == classes[:, None])).float()
    pictures = torch.zeros(count, 1, 8, 8)
    for kind in range(5):
        pictures[classes == kind, :, kind : kind + 3, kind] = 1
    pictures += 0.4 * torch.randn_like(pictures)
    teacher = layers(12, 32, 5)
    teach = (3 * teacher(points)).softmax(-1).detach()

    low = points[:, :4] @ torch.randn(4, 12)
    counts = torch.poisson((0.7 * target).clamp(max=3).exp())
    words = (ids * 37) % 64
    near = (words + 1 + ids % 3) % 64
    conv = lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))  # noqa: E731
    return {
        "vae": Problem(Coder, torch.zeros(count, 24), bits, elbo, 3e-3, classes),
        "graph": Problem(
            lambda: layers(12, 24, 5), graph @ torch.eye(12).roll(1, 0) + graph, classes, cross, 5e-3, classes
        ),
        "triplet": Problem(lambda: layers(12, 32, 4), points, classes, triplet, 1e-3, classes),
        "points_diffusion": Problem(lambda: layers(3, 48, 48, 2), spiral, spiral, denoise, 2e-3, noise),
        "grammar": Problem(Attention, language[:, :-1], language[:, 1:], cross, 3e-3, language[:, 0]),
        "shapes": Problem(conv, pictures, classes, cross, 2e-3, classes),
        "quantile": Problem(lambda: layers(12, 32, 1), points, target * noise.abs().exp(), pinball, 3e-3, target),
        "skip_gram": Problem(lambda: nn.Embedding(64, 8), words, near, skip_gram, 2e-2, words),
        "poisson": Problem(lambda: layers(12, 32, 1), points, counts, poisson, 2e-3, counts),
        "masked": Problem(lambda: layers(12, 48, 12), low, low, masked, 3e-3, low[:, 0]),
        "similarity": Problem(lambda: layers(12, 32, 12), points, low, similar, 1e-3, low[:, 0]),
        "distillation": Problem(lambda: layers(12, 48, 5), points, teach, distil, 3e-3, teach[:, 0]),
    }


def train(problem: Problem, fault: str, seed: int) -> list[dict[str, float]]:
    """Return the rows of a training."""
    torch.manual_seed(seed)
    onset = int(STEPS * ONSET) if fault else STEPS
    model, count, rows = problem.make(), len(problem.inputs), []
    optimizer = (
        torch.optim.Adam(model.parameters(), problem.rate)
        if seed % 3
        else torch.optim.SGD(model.parameters(), 30 * problem.rate, 0.9)
    )
    rate = optimizer.param_groups[0]["lr"]
    order = problem.sort.argsort()
    for step in range(STEPS):
        begun = step >= onset
        schedule = min(1.0, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS) if seed % 2 else 1.0)
        now = rate * schedule * ({"lr10": 10, "lr30": 30}.get(fault, 1) if begun else 1)
        optimizer.param_groups[0]["lr"] = now
        pick = torch.randint(count, (BATCH,))
        if begun and fault == "sorted":
            pick = order[(step - onset) * BATCH % count :][:BATCH]
        x, y = problem.inputs[pick], problem.targets[pick]
        if begun and fault == "labels":
            y = y[torch.randperm(len(y))]
        if step == onset and fault == "weights":
            with torch.no_grad():
                for weights in model.parameters():
                    weights.mul_(1 + 20 * (torch.rand_like(weights) < 0.03))
        if step == onset and fault == "restart":
            new = problem.make().state_dict()
            model.load_state_dict(new)
        loss = problem.loss(model, x, y) * (8 if begun and fault == "scale" else 1)
        if step == onset and fault == "nan":
            loss = loss * math.nan
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        row = {"step": step, "time": 0.5 * step, "loss": float(loss.detach()), "grad_norm": float(norm)}
        if seed % 2 or step % EVERY == 0:
            row["lr"] = now
        rows.append(row)
    return rows


def main() -> None:
    """Write the runs."""
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    draw = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    torch.manual_seed(draw)
    index = []
    for number, (name, problem) in enumerate(problems().items()):
        (place / name).mkdir(parents=True, exist_ok=True)
        faults = ("", "", *(FAULTS[(3 * number + one + 5 * draw) % len(FAULTS)] for one in range(3)))
        for seed, fault in enumerate(faults, 1000 * draw + 10 * number + 1):
            rows = train(problem, fault, seed)
            run = f"{fault or 'healthy'}_s{seed}"
            with (place / name / f"{run}.csv").open("w", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, ("step", "time", "loss", "grad_norm", "lr"))
                writer.writeheader()
                writer.writerows(rows)
            index.append({"dataset": name, "run": run, "fault": fault, "onset": int(STEPS * ONSET) if fault else None})
    (place / "index.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in index), encoding="utf-8")


if __name__ == "__main__":
    main()
