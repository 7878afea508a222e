"""Checksum of event files: CRC-32C (Castagnoli), masked as TFRecord does it."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # bits in reverse order
MASK = 0xA282EAD8
BITS = 0xFFFFFFFF


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


def remainder(data: bytes, begin: int = 0) -> int:
    """Return the remainder of the polynomial of some bytes, without the inversions of a checksum."""
    for byte in data:
        begin = _TABLE[(begin ^ byte) & 0xFF] ^ begin >> 8
    return begin


def masked_crc(data: bytes) -> int:
    """Return the masked checksum."""
    return masked(remainder(data, BITS))


def masked(found: int) -> int:
    """Return the masked checksum of bytes that leave a remainder: `turned`, and `MASK` added."""
    return (turned(found ^ BITS) + MASK) & BITS


def turned(crc: int) -> int:
    """Return a remainder with its bits turned, as masking does first."""
    return (crc >> 15 | crc << 17) & BITS
