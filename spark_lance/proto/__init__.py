"""Protobuf messages of the Lance format, generated from ``protos/*.proto`` by ``protos/generate.py``.

``messages.binpb`` is a ``FileDescriptorSet``, the descriptions of all of them:

    set = entry*
    entry = 0x0a length description     the length is a varint, the description a FileDescriptorProto

``<name>_pb2`` defines the messages of ``<name>.proto`` when it is imported.
"""

from __future__ import annotations

import functools
import pkgutil
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

__all__ = ["define"]


def define(name: str, names: dict[str, Any]) -> Any:
    """Put the messages of ``<name>.proto`` into the globals of its module; return the file's descriptor.

    The modules that its messages rest on have been imported.
    """
    file = descriptor_pool.Default().AddSerializedFile(_descriptions()[f"spark_lance/proto/{name}.proto"])
    builder.BuildMessageAndEnumDescriptors(file, names)
    builder.BuildTopDescriptorsAndMessages(file, names["__name__"], names)
    return file


@functools.cache
def _descriptions() -> dict[str, bytes]:
    """Return the path of each .proto file, by which others import it -> its description."""
    data = pkgutil.get_data(__name__, "messages.binpb")
    assert data is not None
    found = {}
    position = 0
    while position < len(data):
        size, start = _varint(data, position + 1)
        position = start + size
        description = data[start:position]
        # A description begins with the file's name: its tag, its length, which is below 128, and its bytes.
        found[description[2 : 2 + description[1]].decode()] = description
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of seven bits in each byte, the lowest first, and the position after it."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position
