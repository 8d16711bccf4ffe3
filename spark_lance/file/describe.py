"""The encoding of a page in the format's names, for people; nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, PAGE_LAYOUT_URL, PLANAR_LAYOUT_URL, Page
from spark_lance.proto import encodings20_pb2, encodings21_pb2, encodings23_pb2

# The oneofs whose choice is a name of an encoding, by version of the format.
_CHOICES = frozenset({"layout", "compression", "array_encoding", "codec"})
# Fields of a page about its levels and extra buffers, which do not show how its values are stored.
_BESIDE = frozenset(
    {"rep_compression", "def_compression", "rep_encoding", "def_encoding", "validity", "levels"}
)


def encoding_names(page: Page) -> str:
    """Return the encodings of a page's values from the outside in, such as `mini_block_layout, rle, flat`.

    Raises:
        UnsupportedFormatError: the page is of another format.
        FormatError: the description is damaged.
    """
    if page.says(PAGE_LAYOUT_URL):
        message: Message = page.layout(encodings21_pb2.PageLayout, PAGE_LAYOUT_URL)
    elif page.says(PLANAR_LAYOUT_URL):
        message = page.layout(encodings23_pb2.PlanarLayout, PLANAR_LAYOUT_URL).values
    else:
        message = page.layout(encodings20_pb2.ArrayEncoding, ARRAY_ENCODING_URL)
    return ", ".join(dict.fromkeys(_names(message)))


def _names(message: Message) -> Iterator[str]:
    """Yield the names that oneofs below a message have chosen."""
    for field, value in message.ListFields():
        if field.name in _BESIDE or not isinstance(value, Message):
            continue
        if field.containing_oneof is not None and field.containing_oneof.name in _CHOICES:
            yield field.name
        if isinstance(value, encodings21_pb2.BufferCompression):
            yield encodings21_pb2.CompressionScheme.Name(value.scheme).rpartition("_")[2].lower()
        yield from _names(value)
