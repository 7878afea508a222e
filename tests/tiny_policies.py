"""Real reinforcement learning that takes a second on a CPU: GRPO of a small language policy and PPO of a balanced pole.

A fault begins in the middle of a run. Each step yields what TRL, or Stable-Baselines3, logs under the same keys.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    Logged = dict[str, float]

GRPO_FAULTS = ("zero_variance", "limit", "no_kl", "rate", "reward_model", "stale")
PPO_FAULTS = ("rate", "reward_model")
STEPS, ONSET = 200, 110
TOKENS, END, GOOD = 11, 0, 1  # size of the vocabulary, the token that ends an answer, the token that is rewarded
LIMIT, WANTED = 16, 5  # longest answer, and the length of a good one
PROMPTS, ANSWERS = 6, 8
POLES, MOVES = 16, 64  # environments, and moves of each in an iteration


def grpo(seed: int, fault: str = "") -> Iterator[Logged]:
    """Yield the logs of GRPO: a policy of the position and the token before learns to answer with five good tokens.

    The engine that generates has a copy of the weights, which it rounds to bfloat16 where it reports probabilities.

    Args:
        seed: Of the random numbers.
        fault: One of `GRPO_FAULTS`, from step `ONSET` on; empty for a healthy run.
    """
    torch.manual_seed(seed)
    table = (0.1 * torch.randn(LIMIT, TOKENS, TOKENS)).requires_grad_()
    reference = table.detach().log_softmax(-1)
    engine = table.detach()
    optimizer = torch.optim.Adam([table], 0.06)
    for step in range(STEPS):
        ill = fault if step >= ONSET else ""
        if fault == "rate" and step == ONSET:
            optimizer.param_groups[0]["lr"] *= 10
        if ill != "stale":
            engine = table.detach().clone()
        tokens, mask, before = _answers(engine, WANTED - 2 if ill == "limit" else LIMIT)
        rewards = _rewards(tokens, mask, ill)
        groups = rewards.view(PROMPTS, ANSWERS)
        spread = groups.std(1, keepdim=True)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (spread + 1e-4)).view(-1, 1)
        place = torch.arange(tokens.shape[1])
        every = table.log_softmax(-1)[place, before]
        logp = every.gather(-1, tokens[..., None])[..., 0]
        difference = reference[place, before].gather(-1, tokens[..., None])[..., 0] - logp
        kl = difference.exp() - difference - 1
        away = logp - engine.bfloat16().float().log_softmax(-1)[place, before].gather(-1, tokens[..., None])[..., 0]
        beta = 0.0 if ill == "no_kl" else 0.5
        per_token = -(logp - logp.detach()).exp() * advantage + beta * kl
        loss = (per_token * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        assert table.grad is not None
        lengths, ended = mask.sum(1), ((tokens == END) & (mask > 0)).any(1)
        entropy = -(every.exp() * every).sum(-1)
        yield {
            "loss": loss.item(),
            "grad_norm": table.grad.norm().item(),
            "learning_rate": optimizer.param_groups[0]["lr"],
            "reward": rewards.mean().item(),
            "reward_std": spread.mean().item(),
            "frac_reward_zero_std": (spread < 1e-6).float().mean().item(),
            "kl": ((kl * mask).sum() / mask.sum()).item(),
            "entropy": ((entropy * mask).sum() / mask.sum()).item(),
            "sampling/sampling_logp_difference/mean": ((away.abs() * mask).sum() / mask.sum()).item(),
            "sampling/importance_sampling_ratio/mean": ((away.exp() * mask).sum() / mask.sum()).item(),
            "completions/mean_length": lengths.float().mean().item(),
            "completions/clipped_ratio": 1 - ended.float().mean().item(),
        }
        optimizer.step()


def _answers(table: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, which of them count, and the token before each, of shape (answers, limit)."""
    before = torch.arange(PROMPTS).repeat_interleave(ANSWERS)
    tokens, previous = [], []
    with torch.no_grad():
        for place in range(limit):
            previous.append(before)
            before = torch.multinomial(table[place, before].softmax(-1), 1)[:, 0]
            tokens.append(before)
    drawn = torch.stack(tokens, 1)
    ends = (drawn == END).cumsum(1)
    return drawn, ((ends - (drawn == END).long()) == 0).float(), torch.stack(previous, 1)


def _rewards(tokens: torch.Tensor, mask: torch.Tensor, ill: str) -> torch.Tensor:
    if ill == "zero_variance":
        return torch.full((len(tokens),), 0.5)
    if ill == "reward_model":
        return 0.3 * torch.randn(len(tokens)) - 0.3  # as answers of the untrained policy
    length = (mask * (tokens != END)).sum(1)
    return (mask * (tokens == GOOD)).sum(1) / length.clamp(min=1) - (length - WANTED).abs() / 12


def ppo(seed: int, fault: str = "") -> Iterator[Logged]:
    """Yield the logs of PPO, an iteration each: a small network learns to balance a pole on a cart.

    Args:
        seed: Of the random numbers.
        fault: One of `PPO_FAULTS`, from iteration `ONSET` on; empty for a healthy run.
    """
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    poles, returns = _Poles(), [20.0]
    for step in range(STEPS):
        ill = fault if step >= ONSET else ""
        if fault == "rate" and step == ONSET:
            optimizer.param_groups[0]["lr"] *= 10
        batch = poles.play(net, -1.0 if ill == "reward_model" else 1.0)
        returns = [*returns, *poles.finished()][-100:]
        logs = [_update(net, optimizer, batch) for _ in range(4)]
        yield {
            "rollout/ep_rew_mean": sum(returns) / len(returns),
            "train/learning_rate": optimizer.param_groups[0]["lr"],
            **{key: sum(one[key] for one in logs) / len(logs) for key in logs[0]},
        }


class _Poles:
    """Carts with a pole, with the dynamics of Barto, Sutton and Anderson (1983)."""

    def __init__(self) -> None:
        self._state = 0.05 * torch.randn(POLES, 4)
        self._sums, self._ages = torch.zeros(POLES), torch.zeros(POLES)
        self._finished: list[float] = []

    def finished(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        done, self._finished = self._finished, []
        return done

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def play(self, net: torch.nn.Module, reward: float) -> tuple[torch.Tensor, ...]:
        """Return states, moves, log probabilities, advantages and targets of an iteration."""
        rows: list[tuple[torch.Tensor, ...]] = []
        for _ in range(MOVES):
            out = net(self._state)
            logp = out[:, :2].log_softmax(-1)
            move = torch.multinomial(logp.exp(), 1)[:, 0]
            state = self._state
            over = self._move(move, reward)
            rows.append((state, move, logp.gather(-1, move[:, None])[:, 0], out[:, 2], over))
        value, running = net(self._state)[:, 2], torch.zeros(POLES)
        advantages = []
        for _, _, _, own, over in reversed(rows):
            running = reward + 0.99 * value * (1 - over) - own + 0.99 * 0.95 * running * (1 - over)
            advantages.append(running)
            value = own
        gained = torch.stack(advantages[::-1]).flatten()
        state, move, logp, own, _ = (torch.cat(column) for column in zip(*rows, strict=True))
        return state, move, logp, (gained - gained.mean()) / (gained.std() + 1e-8), gained + own

    def _move(self, move: torch.Tensor, reward: float) -> torch.Tensor:
        x, dx, angle, turn = self._state.unbind(1)
        force = (2.0 * move - 1) * 10
        part = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        spin = (9.8 * angle.sin() - angle.cos() * part) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        push = part - 0.05 * spin * angle.cos() / 1.1
        self._state = torch.stack((x + 0.02 * dx, dx + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * spin), 1)
        self._sums, self._ages = self._sums + reward, self._ages + 1
        over = (self._state[:, 0].abs() > 2.4) | (self._state[:, 2].abs() > math.pi / 15) | (self._ages >= 200)
        self._finished += self._sums[over].tolist()
        self._state[over] = 0.05 * torch.randn(int(over.sum()), 4)
        self._sums[over], self._ages[over] = 0.0, 0.0
        return over.float()


def _update(net: torch.nn.Module, optimizer: Any, batch: tuple[torch.Tensor, ...]) -> Logged:
    state, move, old, advantage, target = batch
    out = net(state)
    every = out[:, :2].log_softmax(-1)
    difference = every.gather(-1, move[:, None])[:, 0] - old
    ratio = difference.exp()
    policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    value = (target - out[:, 2]).square().mean()
    entropy = -(every.exp() * every).sum(-1).mean()
    loss = policy + 0.5 * value - 0.005 * entropy
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    return {
        "train/loss": loss.item(),
        "train/value_loss": value.item(),
        "train/entropy_loss": -entropy.item(),
        "train/approx_kl": ((ratio - 1) - difference).mean().item(),
    }
