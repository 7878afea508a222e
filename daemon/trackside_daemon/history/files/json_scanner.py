"""Read a JSON document of any length and layout, one value at a time."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from trackside_daemon.history.files.items import LINE_BYTES

# Why no library: ijson parses in C, but does not report line numbers, refuses NaN and reads half a surrogate pair as "?".
# Its C backend leaves an exception pending after an integer of more than 4,300 digits, which then appears anywhere.
CHUNK_BYTES = 64 * 1024
AHEAD = 3  # characters that a pattern of `skip` needs at once
_SPACE = re.compile(r"[ \t\r\n]*")
_decode = json.JSONDecoder().raw_decode


class Scanner:
    """A JSON text that is read once, from its beginning.

    Args:
        stream: The text in UTF-8.

    Attributes:
        line: Line of the current position, from 1.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.line = 1
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._at = 0
        self._ended = False

    def peek(self) -> str:
        """Skip white space; return the next character, or an empty text at the end."""
        while True:
            spaces = _SPACE.match(self._text, self._at)
            end = spaces.end() if spaces else self._at
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            if end < len(self._text) or not self._read_more():
                return self._text[end : end + 1]

    def expect(self, character: str) -> None:
        """Skip a character.

        Raises:
            ValueError: The next character is another one.
        """
        actual = self.peek()
        if actual != character:
            raise ValueError(f"{character} is expected, not {actual or 'the end of the file'}")
        self._at += 1

    def value(self) -> Any:
        """Return the next value, complete.

        Raises:
            ValueError: The next text is not JSON, or longer than `LINE_BYTES`.
        """
        self.peek()
        try:
            return self._value()
        except (ValueError, RecursionError) as error:
            self._at += 1  # `skip` then finds what begins within it
            raise ValueError(_reason(error)) from None

    def _value(self) -> Any:
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._read_more():
                    raise
                continue
            if end + 3 > len(self._text) and self._read_more():  # a number may continue with .5 or e-7
                continue
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            return value

    def skip(self, pattern: re.Pattern[str]) -> tuple[str, int]:
        """Skip to the end of the next match; return the character there, empty without one, and the number of skipped ones."""
        skipped = 0
        while (found := pattern.search(self._text, self._at)) is None:
            before = self._at
            self._at = max(before, len(self._text) - AHEAD)
            self.line += self._text.count("\n", before, self._at)
            skipped += self._at - before
            if not self._read_more():
                return "", skipped + len(self._text) - self._at
        self.line += self._text.count("\n", self._at, found.end())
        skipped += found.end() - self._at
        self._at = found.end()
        return self._text[self._at : self._at + 1], skipped

    def members(self, *, inside: bool = False) -> Iterator[str]:
        """Yield the names in an object; the caller reads each value before it asks for the next name.

        Args:
            inside: Whether the beginning is read already.
        """
        if not inside:
            self.expect("{")
        while self.peek() != "}":
            name = self.value()
            self.expect(":")
            yield str(name)
            if self.peek() != "}":
                self.expect(",")
        self.expect("}")

    def elements(self, *, inside: bool = False) -> Iterator[None]:
        """Yield for each element of an array, which the caller then reads; see `members`."""
        if not inside:
            self.expect("[")
        while self.peek() != "]":
            yield
            if self.peek() != "]":
                self.expect(",")
        self.expect("]")

    def _read_more(self) -> bool:
        if self._ended:
            return False
        if len(self._text) - self._at > LINE_BYTES:
            raise ValueError(f"a value longer than {LINE_BYTES >> 20} MiB")
        self._text = self._text[self._at :]
        self._at = 0
        # At least as much as is there already, so that a long value is not decoded again and again.
        data = self._stream.read(max(CHUNK_BYTES, len(self._text)))
        self._ended = not data
        self._text += self._decoder.decode(data, final=self._ended)
        return True


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"JSON is expected: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
