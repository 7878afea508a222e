"""Checkpoints as the frameworks write them, and what can happen to them."""

from __future__ import annotations

import json
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path


def weights(seed: int) -> dict[str, torch.Tensor]:
    """Return the weights of a model of some 100 kB."""
    generator = torch.Generator().manual_seed(seed)
    return {f"{name}.weight": torch.randn(60 + seed % 7, 100, generator=generator) for name in ("0", "1", "2", "head")}


def as_torch(folder: Path, seed: int) -> Path:
    """Write what a plain loop saves."""
    path = folder / f"step-{seed}.pt"
    torch.save({"model": weights(seed), "optimizer": {"state": weights(seed + 1)}, "step": seed}, path)
    return path


def as_lightning(folder: Path, seed: int) -> Path:
    """Write the file of Lightning's ModelCheckpoint."""
    path = folder / f"epoch=1-step={seed}.ckpt"
    parts = {"state_dict": weights(seed), "optimizer_states": [weights(seed + 1)], "loops": {"fit_loop": {"n": 3}}}
    torch.save({"pytorch-lightning_version": "2.6.6", "global_step": seed, **parts}, path)
    return path


def as_safetensors(folder: Path, seed: int) -> Path:
    """Write two shards and their index, as `save_pretrained` does."""
    path = folder / f"model-{seed}"
    path.mkdir()
    placed: dict[str, str] = {}
    for number, names in enumerate((("0", "1"), ("2", "head")), 1):
        name = f"model-0000{number}-of-00002.safetensors"
        shard = {key: value for key, value in weights(seed).items() if key.partition(".")[0] in names}
        save_file(shard, path / name, {"format": "pt"})
        placed |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": 96_000}, "weight_map": placed}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return path


def as_dcp(folder: Path, seed: int) -> Path:
    """Write a folder of torch.distributed.checkpoint, of two files."""
    path = folder / f"global-{seed}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the missing process group
        writer = dcp.FileSystemWriter(path, single_file_per_rank=False, thread_count=2)
        dcp.save({"model": weights(seed), "step": seed}, storage_writer=writer)
    return path


def as_transformers(folder: Path, seed: int) -> Path:
    """Write the folder of a Trainer of Transformers."""
    path = folder / f"checkpoint-{seed}"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt2"}')
    save_file(weights(seed), path / "model.safetensors", {"format": "pt"})
    torch.save({"output_dir": "out"}, path / "training_args.bin")
    torch.save({"state": weights(seed + 1)}, path / "optimizer.pt")
    torch.save({"last_epoch": seed}, path / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, path / "rng_state.pth")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": seed, "log_history": [{"loss": 1.5}] * 20}))
    return path


FORMATS: dict[str, Callable[[Path, int], Path]] = {
    "torch": as_torch,
    "lightning": as_lightning,
    "safetensors": as_safetensors,
    "dcp": as_dcp,
    "transformers": as_transformers,
}
ORDER = {
    "safetensors": [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ],
    "dcp": ["__0_0.distcp", "__0_1.distcp", ".metadata"],
    "transformers": [
        *("config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"),
        "trainer_state.json",
    ],
}
"""The files of a folder in the order in which they are written."""


def files(path: Path) -> list[Path]:
    """Return the files of a checkpoint in the order in which they are written."""
    return [path / name for name in ORDER[_kind(path)]] if path.is_dir() else [path]


def _kind(path: Path) -> str:
    return next(kind for kind, names in ORDER.items() if (path / names[0]).exists() or (path / names[-1]).exists())


def truncated(path: Path, chance: random.Random) -> str:
    """Cut a file off; return its name."""
    file = chance.choice(files(path))
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(chance.randrange(size))
    return file.name


def zeroed(path: Path, chance: random.Random) -> str:
    """Fill a file with zeros, or its end, as a crash of the machine leaves it; return its name."""
    file = chance.choice(files(path))
    size = file.stat().st_size
    begin = chance.choice([0, size // 2]) if file.suffix not in {".safetensors", ".json"} else 0
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(bytes(size - begin))
    return file.name


def flipped(path: Path, chance: random.Random) -> str:
    """Flip a bit of a weight; return the name of the file."""
    file = max(files(path), key=lambda one: one.stat().st_size)
    position = chance.randrange(file.stat().st_size // 4, file.stat().st_size // 2)
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return file.name


def without_shard(path: Path, chance: random.Random) -> str:
    """Remove a file, of a single file the second half; return its name."""
    if path.is_file():
        return truncated(path, chance)
    file = chance.choice([one for one in files(path) if one.suffix != ".json"])
    file.unlink()
    return file.name


def killed(path: Path, chance: random.Random) -> str:
    """Leave what a process leaves that was killed while it wrote; return the name of the file that it was at."""
    written = files(path)
    at = chance.randrange(len(written))
    for file in written[at + 1 :]:
        file.unlink()
    size = written[at].stat().st_size
    with written[at].open("r+b") as opened:
        opened.truncate(chance.randrange(size))
    return written[at].name


DAMAGES: tuple[Callable[[Path, random.Random], str], ...] = (truncated, zeroed, flipped, without_shard, killed)


def copied(path: Path, folder: Path) -> Path:
    """Return a copy of a checkpoint in another folder, with the times of its files."""
    target = folder / path.name
    shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)
    return target


def sizes(checked: Any) -> dict[str, int]:
    """Return the size of each file that an audit has listed."""
    return {file.name: file.bytes for file in checked.files}
