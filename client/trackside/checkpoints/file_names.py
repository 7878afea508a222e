"""Names of the files of checkpoints: which checkpoint a file belongs to, and what it is called once it is complete."""

import re
from pathlib import Path

_UNFINISHED = (".tmp", ".part", ".partial", ".new", ".incomplete")  # what writers append until they rename
# Names of the parts of a checkpoint that is a folder.
_PART = re.compile(
    r"(model|pytorch_model|adapter|optim|scheduler|sched|rng|random|scaler|sampler|training_args|mp_rank|zero_|state|"
    r"custom_checkpoint|rank|shard|__\d+_\d+|consolidated)",
    re.IGNORECASE,
)
# Names of folders of one step, unlike those of a run, such as exp1.
_STEP = re.compile(
    r"\d+|.*(checkpoint|ckpt|step|iter|epoch|round|update|save|snapshot)[a-z]*[-_=.]*\d.*", re.IGNORECASE | re.DOTALL
)
# Names of files that are of no use without those of a model.
_ACCESSORY = re.compile(r"(optim|sched|rng|random_state|scaler|sampler|training_args)", re.IGNORECASE)


def final_name(file: Path) -> Path:
    """Return the path that a file will have, without what its writer appends until it is complete."""
    return file.with_suffix("") if file.suffix in _UNFINISHED else file


def checkpoint_of(file: Path) -> Path | None:
    """Return the checkpoint that a file belongs to: its folder if it is named like a part of one, else the file.

    None for a file in a hidden folder, which its writer will rename.
    """
    if any(part.startswith(".") for part in file.parts[1:-1]) or file.name.startswith("."):
        return None
    folder = file.parent
    numbered = next((place for place in (folder, folder.parent) if _STEP.fullmatch(place.name)), None)
    if file.suffix == ".distcp":
        return numbered or folder
    return numbered if numbered is not None and _PART.match(file.name) else file


def is_accessory(file: Path) -> bool:
    """Return whether a file belongs to the checkpoints next to it, such as an optimizer's state, and is none by itself."""
    return _ACCESSORY.match(file.name) is not None
