"""PPO of Stable-Baselines3 that learns to balance a pole, with the two lines for trackside; a minute on a CPU.

It trains the same without a daemon. ``pip install stable-baselines3``. To see the training, start a daemon first::

    trackside daemon
    python examples/sb3_ppo.py
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO

from trackside.integrations.stable_baselines3 import TracksideCallback  # 1 of 2


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Balance a pole.")
    parser.add_argument("--steps", type=int, default=40_000, help="steps of the environment")
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    model.learn(parser.parse_args().steps, callback=TracksideCallback("sb3-ppo"))  # 2 of 2
    print(model.logger.name_to_value.get("rollout/ep_rew_mean", ""))


if __name__ == "__main__":
    main()
