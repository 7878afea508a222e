"""GRPO of TRL that teaches a tiny new model to answer with vowels, with the two lines for trackside; a minute on a CPU.

It trains the same without a daemon. ``pip install trl``. To see the training, start a daemon first, in another terminal::

    trackside daemon
    python examples/grpo_trl.py

``--equal-rewards`` rewards all answers alike from the middle on: the alert NoLearningSignal names it.
``--limit 3`` cuts nearly all answers: the alert TruncationRising names it.
"""

from __future__ import annotations

import argparse
import string
import tempfile
from typing import Any

from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from trackside.integrations.transformers import TracksideCallback  # 1 of 2

LETTERS = string.ascii_lowercase[:9]
WANTED = 5  # letters of a good answer


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single letters."""
    words = {word: index for index, word in enumerate(["<unk>", "<pad>", "<eos>", *LETTERS])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106  no password
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        unk_token="<unk>",  # noqa: S106
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
        padding_side="left",
    )


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Teach a tiny model to answer with vowels.")
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps")
    parser.add_argument("--equal-rewards", action="store_true", help="reward all answers alike from the middle on")
    parser.add_argument("--name", default="grpo", help="name of the run")
    parser.add_argument("--limit", type=int, default=16, help="tokens of the longest answer")
    arguments = parser.parse_args()

    def reward(completions: list[str], trainer_state: Any = None, **_: Any) -> list[float]:
        if arguments.equal_rewards and trainer_state.global_step >= arguments.steps // 2:
            return [0.5] * len(completions)
        vowels = [sum(text.count(one) for one in "aei") / max(len(text), 1) for text in completions]
        return [share - abs(len(text) - WANTED) / 12 for share, text in zip(vowels, completions, strict=True)]

    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config(vocab_size=len(LETTERS) + 3, **size, **ends)).save_pretrained(f"{folder}/begin")
        trainer = GRPOTrainer(
            model=f"{folder}/begin",
            args=GRPOConfig(
                f"{folder}/out",
                run_name=arguments.name,
                max_steps=arguments.steps,
                logging_steps=1,
                save_strategy="no",
                learning_rate=1e-3,
                lr_scheduler_type="constant",
                per_device_train_batch_size=32,
                num_generations=8,
                max_completion_length=arguments.limit,
                beta=0.3,
                use_cpu=True,
                report_to="none",
            ),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": [LETTERS[row % 9] for row in range(64)]}),
            processing_class=tokenizer(),
            callbacks=[TracksideCallback()],  # 2 of 2
        )
        trainer.train()


if __name__ == "__main__":
    main()
