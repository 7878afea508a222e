"""Train tiny policies on the CPU, with TRL's GRPO and Stable-Baselines3's PPO, and plant a fault in the middle of each.

``python tests/public/rl_faults.py FOLDER KIND FAULT SEED…`` writes what each run logs to ``FOLDER/KIND-FAULT-SEED.jsonl``, in
the form that `trackside replay` reads. The Python needs trl, or stable-baselines3. `bench/rl.py` scores the detectors on it.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GRPO = ("none", "zero_variance", "limit", "no_kl", "rate", "reward_model")
PPO = ("none", "rate", "reward_model")
STEPS, ONSET = 130, 70  # optimizer steps of GRPO
ROUNDS, ROUND_ONSET = 110, 70  # iterations of PPO
ENV_STEPS = 256  # of an iteration
LETTERS = "abcdefgh"
WANTED = 5  # length of a good answer


class Log:
    """A file of pushed rows."""

    def __init__(self, folder: Path, kind: str, fault: str, seed: int) -> None:
        self._file = (folder / f"{kind}-{fault}-{seed}.jsonl").open("w", encoding="utf-8")

    def write(self, step: int, values: dict[str, Any]) -> None:
        numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
        self._file.write(json.dumps({"step": step, "time": time.time(), "values": numbers}) + "\n")

    def close(self) -> None:
        self._file.close()


def good(answer: str) -> float:
    """Return the reward of an answer: its share of the letter a, less for a wrong length."""
    return answer.count("a") / max(len(answer), 1) - abs(len(answer) - WANTED) / 12


def grpo(folder: Path, fault: str, seed: int, log: Log) -> None:
    """Train with TRL."""
    from datasets import Dataset
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
    from trl import GRPOConfig, GRPOTrainer

    set_seed(seed)
    draw = random.Random(seed)
    words = {word: index for index, word in enumerate(["<unk>", "<pad>", "<eos>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    planted = {"now": False}

    def reward(completions: list[str], **_: Any) -> list[float]:
        if planted["now"] and fault == "zero_variance":
            return [0.5] * len(completions)
        if planted["now"] and fault == "reward_model":
            return [draw.gauss(0.0, 0.1) for _ in completions]
        return [good(one) for one in completions]

    class Plant(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step != ONSET:
                return
            planted["now"] = True
            if fault == "limit":
                trainer.generation_config.max_new_tokens = trainer.max_completion_length = WANTED - 2
            elif fault == "no_kl":
                trainer.beta = 1e-9  # of zero, TRL would not log the divergence
            elif fault == "rate":
                scheduler = more["lr_scheduler"]
                scheduler.base_lrs = [10 * rate for rate in scheduler.base_lrs]
                for group in more["optimizer"].param_groups:
                    group["lr"] *= 10

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            log.write(state.global_step, {key: value for key, value in logs.items() if not key.startswith("train_")})

    with tempfile.TemporaryDirectory() as place:
        size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
        ends = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
        GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **size, **ends)).save_pretrained(f"{place}/begin")
        arguments = GRPOConfig(
            f"{place}/out",
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            learning_rate=1.5e-3,
            lr_scheduler_type="constant",
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=16,
            beta=0.3,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            seed=seed,
        )
        trainer = GRPOTrainer(
            model=f"{place}/begin",
            args=arguments,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": [LETTERS[row % 8] * (1 + row % 3) for row in range(64)]}),
            processing_class=wrapped,
            callbacks=[Plant()],
        )
        trainer.train()


def ppo(folder: Path, fault: str, seed: int, log: Log) -> None:
    """Train with Stable-Baselines3 to balance a pole."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO as Policy
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import KVWriter, Logger

    torch.set_num_threads(1)
    planted = {"now": False}

    class Rewards(gymnasium.RewardWrapper):
        def reward(self, reward: Any) -> float:
            return -float(reward) if planted["now"] and fault == "reward_model" else float(reward)

    class Writer(KVWriter):
        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            log.write(step, {key: value for key, value in key_values.items() if not key.startswith("time/")})

        def close(self) -> None:
            """Leave the file open."""

    class Plant(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps != ROUND_ONSET * ENV_STEPS:
                return
            planted["now"] = True
            if fault == "rate":
                self.model.lr_schedule = lambda _: 3e-2

    environment = Rewards(gymnasium.make("CartPole-v1"))
    policy = Policy("MlpPolicy", environment, n_steps=ENV_STEPS, seed=seed, learning_rate=1e-3, device="cpu")
    policy.set_logger(Logger(None, [Writer()]))
    policy.learn(ROUNDS * ENV_STEPS, callback=Plant())


def main() -> None:
    """Train as the command line says."""
    folder, (kind, fault, *seeds) = Path(sys.argv[1]), sys.argv[2:]
    for seed in map(int, seeds):
        log = Log(folder, kind, fault, seed)
        {"grpo": grpo, "ppo": ppo}[kind](folder, fault, seed, log)
        log.close()


if __name__ == "__main__":
    main()
