"""Training text: the help pages that come with every Python, so nothing is downloaded."""

from pydoc_data.topics import topics
from random import Random
from typing import NamedTuple

VALIDATION_RATIO = 0.1


class Text(NamedTuple):
    """English text as one byte per character."""

    vocabulary: str  # the distinct characters, sorted; a character's code is its index. Fewer than 256
    train: bytes  # codes of the training set
    validation: bytes  # codes of the validation set, the end of the text


def load() -> Text:
    """Return Python's help topics in lower case and ASCII: about half a million characters, some 60 distinct."""
    text = "\n\n".join(topics.values()).lower().encode("ascii", "ignore").decode("ascii")
    vocabulary = "".join(sorted(set(text)))
    code = {character: index for index, character in enumerate(vocabulary)}
    codes = bytes(code[character] for character in text)
    cut = len(codes) - int(len(codes) * VALIDATION_RATIO)
    return Text(vocabulary, codes[:cut], codes[cut:])


def windows(codes: bytes, *, count: int, length: int, random: Random) -> list[bytes]:
    """Return *count* random pieces of *codes*, each *length* characters long."""
    starts = (random.randrange(len(codes) - length + 1) for _ in range(count))
    return [codes[start : start + length] for start in starts]
