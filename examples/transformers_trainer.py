"""A tiny GPT-2, trained by the Transformers Trainer on Python's help pages, with the two lines for trackside.

It trains the same without a daemon. To see the training, start a daemon first, in another terminal::

    trackside daemon
    python examples/transformers_trainer.py --steps 2000
"""

from __future__ import annotations

import argparse
import math
from pydoc_data.topics import topics
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from trackside.integrations.transformers import TracksideCallback  # 1 of 2

CONTEXT = 32  # characters per sample
BATCH = 8  # samples per device
EVALUATED = 64  # samples


class Characters(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # mypy does not follow imports of PyTorch
    """Windows of a text of codes [characters]: ``input_ids`` and ``labels``, both [CONTEXT]."""

    def __init__(self, codes: torch.Tensor) -> None:
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.codes[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


class TroubledTrainer(Trainer):  # type: ignore[misc]  # mypy does not follow imports of Transformers
    """A Trainer with a NaN loss at one step, whose gradients stay finite."""

    nan_at = 0

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *more: Any, **named: Any) -> Any:
        """Return the loss of the model, or NaN at step `nan_at`."""
        loss = super().compute_loss(model, inputs, *more, **named)
        return loss + math.nan if model.training and self.state.global_step + 1 == self.nan_at else loss


def load_text() -> tuple[torch.Tensor, int]:
    """Return the text as codes [characters], and the number of distinct characters."""
    text = "\n\n".join(topics.values()).lower()
    vocabulary = sorted(set(text))
    code = {character: index for index, character in enumerate(vocabulary)}
    return torch.tensor([code[character] for character in text]), len(vocabulary)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny GPT-2 with Trainer.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", default="gpt2-tiny", help="directory of the checkpoints")
    parser.add_argument("--log-each", type=int, default=10, help="steps between logs")
    parser.add_argument("--save-each", type=int, default=100, help="steps between checkpoints, and between evaluations")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    parser.add_argument("--nan-at", type=int, default=0, help="step whose loss becomes NaN")
    options = parser.parse_args()

    codes, vocabulary = load_text()
    split = len(codes) - EVALUATED * CONTEXT
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    arguments = TrainingArguments(
        output_dir=options.output,
        run_name="gpt2-tiny",
        max_steps=options.steps,
        learning_rate=3e-3,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=options.accumulate,
        logging_steps=options.log_each,
        eval_strategy="steps",
        eval_steps=options.save_each,
        save_steps=options.save_each,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    TroubledTrainer.nan_at = options.nan_at
    trainer = TroubledTrainer(
        model=model,
        args=arguments,
        train_dataset=Characters(codes[:split]),
        eval_dataset=Characters(codes[split:]),
        callbacks=[TracksideCallback()],  # 2 of 2
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
