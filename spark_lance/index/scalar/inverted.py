"""INVERTED: the text index as a `ScalarIndex`. Text searches use it; scans do not.

A compaction rewrites a segment with the new addresses of its rows. Posting lists refer to documents by
position, so if rows were deleted, all lists are rewritten in the same format. Otherwise only the row numbers
change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import OptionError, UnsupportedFormatError, suggestion
from spark_lance.file.base.schema import Field
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import IndexFileWriter, RowAddressMap, copy_file, copy_renumbered
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.text.inverted import (
    BLOCK_SIZE,
    FORMAT_VERSION,
    INVERTED_LABEL,
    INVERTED_NEWEST,
    INVERTED_URL,
    LISTS,
    METADATA,
    TextPart,
    build_inverted,
    has_own_form,
    text_parts,
    write_docs,
    write_tokens,
)
from spark_lance.index.text.lists import is_text, is_text_list
from spark_lance.index.text.position_streams import OFFSETS, STREAM, pack_streams
from spark_lance.index.text.positions import POSITIONS
from spark_lance.index.text.postings import BLOCK, pack_list
from spark_lance.index.text.scores import weights
from spark_lance.index.text.stop_words import LANGUAGES
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import RowSet

_RUN_TOKENS = 1024
_PART_FILES = ("docs", "tokens", "invert")


def remap_inverted(segment: Segment, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
    """Rewrite a text segment with the current addresses of its rows; return file name -> size in bytes.

    Raises:
        FormatError: the segment is damaged.
        UnsupportedFormatError: rows were deleted, and positions have an unknown format or blocks have another
            size.
    """
    parts = text_parts(segment)
    if all(remap(part.row_ids)[1].all() for part in parts):
        return _copy_with_new_rows(segment, parts, target, remap)
    sizes: dict[str, int] = {}
    for part in parts:
        sizes |= _drop_deleted_documents(part, target, remap)
    source = segment.file(METADATA)
    with IndexFileWriter(
        target.store, f"{target.directory}/{METADATA}", source.arrow_schema, target.version
    ) as writer:
        content = source.read()
        writer.write([content.column(name).combine_chunks() for name in content.column_names])
        sizes[METADATA] = writer.finish({**source.metadata, "token_set_format": "arrow"})
    return sizes


def merge_inverted(segments: Sequence[Segment], target: SegmentTarget) -> dict[str, int] | None:
    """Write one segment with copies of the parts of several segments; return file name -> size in bytes.

    Returns None if the segments have different formats.
    """
    sources = [segment.file(METADATA) for segment in segments]
    notes = [{**source.metadata, "partitions": ""} for source in sources]
    if any(other != notes[0] for other in notes):
        return None
    sizes: dict[str, int] = {}
    count = 0
    for segment in segments:
        for part in text_parts(segment):
            for file_kind in _PART_FILES:
                name = f"part_{count}_{file_kind}.lance"
                source = segment.file(f"part_{part.number}_{file_kind}.lance")
                sizes[name] = copy_file(source, target.store, f"{target.directory}/{name}")
            count += 1
    path = f"{target.directory}/{METADATA}"
    with IndexFileWriter(target.store, path, sources[0].arrow_schema, target.version) as writer:
        content = sources[0].read()
        writer.write([content.column(name).combine_chunks() for name in content.column_names])
        sizes[METADATA] = writer.finish({**notes[0], "partitions": json.dumps(list(range(count)))})
    return sizes


def _copy_with_new_rows(
    segment: Segment, parts: list[TextPart], target: SegmentTarget, remap: RowAddressMap
) -> dict[str, int]:
    names = [METADATA]
    sizes = {}
    for part in parts:
        docs = f"part_{part.number}_docs.lance"
        path = f"{target.directory}/{docs}"
        sizes[docs] = copy_renumbered(segment.file(docs), target.store, path, target.version, "_rowid", remap)
        names += [f"part_{part.number}_tokens.lance", f"part_{part.number}_invert.lance"]
    for name in names:
        sizes[name] = copy_file(segment.file(name), target.store, f"{target.directory}/{name}")
    return sizes


def _drop_deleted_documents(part: TextPart, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
    """Write a part without the documents of deleted rows."""
    notes = part.lists.metadata
    if STREAM.name in part.lists.arrow_schema.names and not part.has_position_streams:
        raise UnsupportedFormatError("an index of text with positions of an unknown format")
    if notes.get(BLOCK_SIZE, str(BLOCK)) != str(BLOCK):
        raise UnsupportedFormatError(f"posting lists in blocks of {notes[BLOCK_SIZE]}")
    row_ids, is_present = remap(part.row_ids)
    sizes, size = _write_lists(part, is_present, target)
    # Drop words that no document contains any more.
    kept_words = {word: sizes[number] for word, number in part.words.items() if sizes[number] >= 0}
    words = sorted(kept_words, key=str.encode)
    numbers = np.array([kept_words[word] for word in words], dtype=np.int64)
    name = f"part_{part.number}"
    return {
        f"{name}_docs.lance": write_docs(part.number, row_ids[is_present], part.lengths[is_present], target),
        f"{name}_tokens.lance": write_tokens(part.number, words, numbers, target),
        f"{name}_invert.lance": size,
    }


def _write_lists(
    part: TextPart, is_present: npt.NDArray[np.bool_], target: SegmentTarget
) -> tuple[Ints, int]:
    """Write the posting lists that still have a document.

    Returns:
        The new number of every word (int64, -1 if its list is empty), and the size of the file.
    """
    source = part.lists
    documents_now = np.cumsum(is_present) - 1
    lengths = part.lengths[is_present]
    average = float(lengths.mean()) if len(lengths) else 0.0
    numbers = np.full(source.num_rows, -1, dtype=np.int64)
    next_number = 0
    path = f"{target.directory}/part_{part.number}_invert.lance"
    position_fields = _position_fields(part)
    schema = pa.schema([*LISTS, *position_fields])
    read = ["_posting", "_length", *(field.name for field in position_fields)]
    with IndexFileWriter(target.store, path, schema, target.version) as writer:
        for start in range(0, source.num_rows, _RUN_TOKENS):
            table = source.read(read, start, start + _RUN_TOKENS).combine_chunks()
            lists, best, counts, words = [], [], [], []
            postings = zip(table["_posting"].to_pylist(), table["_length"].to_pylist(), strict=True)
            for number, (blocks, count) in enumerate(postings, start):
                documents, frequencies = part.unpacked(blocks, count)
                alive = is_present[documents]
                if not alive.any():
                    continue
                if position_fields:
                    words.append(_WordPositions(number - start, alive, frequencies))
                documents, frequencies = documents_now[documents[alive]], frequencies[alive]
                scores = weights(frequencies, lengths[documents], average, len(lengths), len(documents))
                lists.append(pack_list(documents, frequencies, scores, part.tail))
                best.append(float(scores.max()))
                counts.append(len(documents))
                numbers[number] = next_number
                next_number += 1
            if lists:
                columns = [pa.array(lists, LISTS[0].type), pa.array(best, pa.float32())]
                columns.append(pa.array(counts, pa.uint32()))
                if position_fields:
                    columns += _filter_positions(part, table, words)
                writer.write(columns)
        return numbers, writer.finish(source.metadata)


@dataclass(frozen=True)
class _WordPositions:
    """The documents of a word that are kept.

    Attributes:
        row: row of the word in its table.
        alive: whether each document is kept.
        frequencies: frequency of the word in each document.
    """

    row: int
    alive: npt.NDArray[np.bool_]
    frequencies: Ints


def _position_fields(part: TextPart) -> list[pa.Field]:
    """Return the fields of a part that have word positions."""
    if part.has_position_streams:
        return [STREAM, OFFSETS]
    return [POSITIONS] if POSITIONS.name in part.lists.arrow_schema.names else []


def _filter_positions(part: TextPart, table: pa.Table, words: Sequence[_WordPositions]) -> list[pa.Array]:
    """Return the position columns of words without the documents that are not kept."""
    ends = np.concatenate([[0], np.cumsum([np.count_nonzero(word.alive) for word in words])])
    if not part.has_position_streams:
        column = table[POSITIONS.name]
        lists = [column[word.row].values.filter(pa.array(word.alive)) for word in words]
        return [pa.ListArray.from_arrays(ends.astype(np.int32), pa.concat_arrays(lists), type=POSITIONS.type)]
    places, counts = [], []
    for word in words:
        stream, offsets = table[STREAM.name][word.row].as_py(), table[OFFSETS.name][word.row].values
        positions = part.unpacked_stream(stream, offsets, word.frequencies)
        places.append(positions.places[np.repeat(word.alive, word.frequencies)])
        counts.append(word.frequencies[word.alive])
    return list(pack_streams(np.concatenate(places).astype(np.int64), np.concatenate(counts), ends))


# Option name (as in pylance) -> attribute of `Tokenizer`.
_OPTIONS = {
    "base_tokenizer": "base",
    "language": "language",
    "max_token_length": "max_length",
    "lower_case": "lower",
    "stem": "stem",
    "remove_stop_words": "stops",
    "ascii_folding": "fold",
    "custom_stop_words": "own_stops",
    "with_position": "positions",
    "min_ngram_length": "shortest",
    "max_ngram_length": "longest",
    "prefix_only": "prefix_only",
}


class Inverted(ScalarIndex):
    """Text index: rows by word."""

    name = "INVERTED"
    label = INVERTED_LABEL
    type_url = INVERTED_URL
    newest = INVERTED_NEWEST
    can_move = True

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return the format version of the posting lists."""
        return FORMAT_VERSION

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values are strings, or lists of strings."""
        return is_text(kind) or is_text_list(kind)

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column has strings, lists of strings, or JSON documents."""
        return field.is_json or cls.supports_type(kind)

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return True: we tokenize JSON documents like other writers."""
        return True

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return None: filters compare whole texts, not words."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return the tokenizer parameters and the number of parts."""
        parts = text_parts(self.segment)
        return {"params": parts[0].tokenizer.params() if parts else {}, "num_partitions": len(parts)}

    def can_add_segments(self) -> bool:
        """Return whether this segment has our file format: pylance cannot merge different formats."""
        return has_own_form(self.segment)

    def options(self) -> dict[str, Any]:
        """Return the tokenizer options of this segment."""
        tokenizer = text_parts(self.segment)[0].tokenizer
        return {name: getattr(tokenizer, attribute) for name, attribute in _OPTIONS.items()}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Check that options exist and have valid values."""
        _make_tokenizer(options)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the encoded details, which have the tokenizer parameters."""
        return _make_tokenizer(options).details(BLOCK, FORMAT_VERSION)

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write a segment; return file name -> size in bytes."""
        # Binary values are JSON documents.
        tokenizer = replace(_make_tokenizer(target.options), documents=not cls.supports_type(rows.kind))
        return build_inverted(rows, target, tokenizer)

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        existing_rows: Callable[[RowSet], RowSet],
    ) -> dict[str, int] | None:
        """Copy the parts of all segments into one segment, which counts words across its parts."""
        return merge_inverted(segments, target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the segment with current addresses. Files that do not change are copied."""
        return remap_inverted(self.segment, target, remap)


def _make_tokenizer(options: Mapping[str, Any]) -> Tokenizer:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise OptionError(
            f"an index of text has no option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}"
            f"{suggestion(unknown[0], _OPTIONS)}"
        )
    renamed = {_OPTIONS[name]: value for name, value in options.items()}
    if renamed.get("base") == "ngram":
        renamed = {"stem": False, "stops": False, **renamed}
    if renamed.get("own_stops") is not None:
        renamed["own_stops"] = tuple(renamed["own_stops"])
    assert set(renamed) <= {field.name for field in fields(Tokenizer)}
    if renamed.get("language", "English") not in LANGUAGES:
        raise OptionError(
            f"there is no language {renamed['language']!r}; there are {', '.join(LANGUAGES)}"
            f"{suggestion(renamed['language'], LANGUAGES)}"
        )
    try:
        return Tokenizer(**renamed)
    except UnsupportedFormatError as error:
        raise OptionError(str(error)) from error
