"""TensorBoard's event files: numbers by step, written without TensorBoard, which only who looks at them needs.

A file is a list of records, each with its length and two checksums; a record is a protocol buffer ``Event``. Of that
format this writes what numbers take: an event's time (field 1), step (2), version of the format (3), values (5) and the
mark of a run that goes on at an earlier step (7).
"""

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from fedetf.files import append, make_folder, real_folder

VERSION = b"brain.Event:2"
LARGEST = (2 - 2**-23) * 2.0**127  # number in single precision
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # how a field is written, by the protocol's numbers


class EventFile:
    """A new event file in a folder; ``after`` rounds of an earlier attempt count, and what came later does not."""

    def __init__(self, folder: Path, after: int = 0):
        make_folder(real_folder(folder))
        self._path = folder / f"events.out.tfevents.{int(time.time()):010}.fedetf.{os.getpid()}"
        self._write(_field(3, VERSION))
        if after:
            begins = _number(1, 1)  # the status START: events of this step and later ones are forgotten
            self._write(_number(2, after + 1) + _field(7, begins))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers of one step, at once."""
        entries = (_field(1, _field(1, name.encode()) + _single(2, value)) for name, value in values.items())
        self._write(_number(2, step) + _field(5, b"".join(entries)))

    def _write(self, fields: bytes) -> None:
        event = _key(1, _DOUBLE) + struct.pack("<d", time.time()) + fields
        length = struct.pack("<Q", len(event))
        append(self._path, length + _checksum(length) + event + _checksum(event))


# --- protocol buffers -------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have their highest bit set.

    >>> _varint(300).hex()
    'ac02'
    """
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _field(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _single(field: int, value: float) -> bytes:
    return _key(field, _FLOAT) + struct.pack("<f", max(-LARGEST, min(value, LARGEST)))


# --- checksums --------------------------------------------------------------------------------------------------------


def _table() -> list[int]:
    """CRC-32C of each byte: the remainder by Castagnoli's polynomial, bits reversed."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli).

    >>> hex(crc32c(b"123456789"))  # the check value of its definition
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _checksum(content: bytes) -> bytes:
    """The CRC as these files have it: rotated by 15 bits, and with a constant added."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
