"""A small language model for `trackside benchmark`, which calls `load`; as a script, this trains it and saves its weights.

python examples/language_model.py model.pt
trackside benchmark examples.language_model:load --checkpoint model.pt --variant fp32 --variant int8-dynamic
"""

import sys
from pathlib import Path

import torch
from torch import nn

LENGTH = 32


class LanguageModel(nn.Module):  # type: ignore[misc]
    """A transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 256)
        self.positions = nn.Embedding(512, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, ids.device)
        hidden = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        logits: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def batch(size: int, length: int) -> torch.Tensor:
    """Return parts of a text, as inputs."""
    data = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    begins = torch.randint(len(data) - length - 1, (size,), generator=torch.Generator().manual_seed(0))
    return torch.stack([data[begin : begin + length] for begin in begins])


TEXT = Path(__file__).resolve().parent.parent / "LICENSE"


def load(checkpoint: str = "") -> tuple[nn.Module, object]:
    """Return the model with the weights of a checkpoint, and the function that makes its inputs."""
    model = LanguageModel()
    if checkpoint:
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
    return model, lambda size, length: batch(size, length or LENGTH)


def train(steps: int) -> nn.Module:
    """Return the model after a short training."""
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    for step in range(steps):
        ids = batch(16 * (step + 1), LENGTH + 1)[-16:]
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.2f}")
    return model


if __name__ == "__main__":
    torch.save(train(60).state_dict(), sys.argv[1])
