"""Checksum of event files: CRC-32C (Castagnoli), masked as TFRecord does it."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78  # bits in reverse order


def _row(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_row(byte) for byte in range(256)]


def masked_crc(data: bytes) -> int:
    """Return the masked checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
