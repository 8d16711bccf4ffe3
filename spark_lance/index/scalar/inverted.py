"""INVERTED as one of the indices that are built by name; scans do not use it, text searches do.

A compaction rewrites a segment with the new addresses of its rows. A document is a place among the documents,
and posting lists name places: if rows are gone, all lists are written again, in the form that they had. If
none is, only the row numbers change. Positions of words are rewritten in format 1 only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
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
from spark_lance.index.text.positions import POSITIONS
from spark_lance.index.text.postings import BLOCK, pack_list
from spark_lance.index.text.scores import weights
from spark_lance.index.text.stop_words import LANGUAGES
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import RowSet

_RUN_TOKENS = 1024
_PART_FILES = ("docs", "tokens", "invert")
_NEWER_POSITIONS = "_compressed_position"


def remap_inverted(segment: Segment, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
    """Rewrite a segment with the current rows of its documents; return file name -> bytes.

    Raises:
        FormatError: the segment is damaged.
        UnsupportedFormatError: rows are gone and the segment has positions of format 2, or other blocks.
    """
    parts = text_parts(segment)
    if all(remap(part.row_ids)[1].all() for part in parts):
        return _renumbered(segment, parts, target, remap)
    sizes: dict[str, int] = {}
    for part in parts:
        sizes |= _without_lost(part, target, remap)
    source = segment.file(METADATA)
    with IndexFileWriter(
        target.store, f"{target.directory}/{METADATA}", source.arrow_schema, target.version
    ) as writer:
        content = source.read()
        writer.write([content.column(name).combine_chunks() for name in content.column_names])
        sizes[METADATA] = writer.finish({**source.metadata, "token_set_format": "arrow"})
    return sizes


def merge_inverted(segments: Sequence[Segment], target: SegmentTarget) -> dict[str, int] | None:
    """Write one segment whose parts are copies of those of several; return file name -> bytes.

    None if they are of different forms.
    """
    sources = [segment.file(METADATA) for segment in segments]
    notes = [{**source.metadata, "partitions": ""} for source in sources]
    if any(other != notes[0] for other in notes):
        return None
    sizes: dict[str, int] = {}
    count = 0
    for segment in segments:
        for part in text_parts(segment):
            for what in _PART_FILES:
                name = f"part_{count}_{what}.lance"
                source = segment.file(f"part_{part.number}_{what}.lance")
                sizes[name] = copy_file(source, target.store, f"{target.directory}/{name}")
            count += 1
    path = f"{target.directory}/{METADATA}"
    with IndexFileWriter(target.store, path, sources[0].arrow_schema, target.version) as writer:
        content = sources[0].read()
        writer.write([content.column(name).combine_chunks() for name in content.column_names])
        sizes[METADATA] = writer.finish({**notes[0], "partitions": json.dumps(list(range(count)))})
    return sizes


def _renumbered(
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


def _without_lost(part: TextPart, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
    """Write a partition without the documents whose rows are gone."""
    notes = part.lists.metadata
    if _NEWER_POSITIONS in part.lists.arrow_schema.names:
        raise UnsupportedFormatError("an index of text with positions of format 2 from which rows are gone")
    if notes.get(BLOCK_SIZE, str(BLOCK)) != str(BLOCK):
        raise UnsupportedFormatError(f"posting lists in blocks of {notes[BLOCK_SIZE]}")
    row_ids, there = remap(part.row_ids)
    sizes, size = _write_lists(part, there, target)
    # A word that no document has any more is left out.
    left = {word: sizes[number] for word, number in part.words.items() if sizes[number] >= 0}
    words = sorted(left, key=str.encode)
    numbers = np.array([left[word] for word in words], dtype=np.int64)
    name = f"part_{part.number}"
    return {
        f"{name}_docs.lance": write_docs(part.number, row_ids[there], part.lengths[there], target),
        f"{name}_tokens.lance": write_tokens(part.number, words, numbers, target),
        f"{name}_invert.lance": size,
    }


def _write_lists(part: TextPart, there: npt.NDArray[np.bool_], target: SegmentTarget) -> tuple[Ints, int]:
    """Write the lists that still name a document.

    Returns:
        The new number of every word, -1 if it has no list any more, and the size of the file.
    """
    source = part.lists
    documents_now = np.cumsum(there) - 1
    lengths = part.lengths[there]
    average = float(lengths.mean()) if len(lengths) else 0.0
    numbers = np.full(source.num_rows, -1, dtype=np.int64)
    written = 0
    path = f"{target.directory}/part_{part.number}_invert.lance"
    has_positions = POSITIONS.name in source.arrow_schema.names
    schema = LISTS.append(POSITIONS) if has_positions else LISTS
    read = ["_posting", "_length", *([POSITIONS.name] if has_positions else [])]
    with IndexFileWriter(target.store, path, schema, target.version) as writer:
        for start in range(0, source.num_rows, _RUN_TOKENS):
            table = source.read(read, start, start + _RUN_TOKENS).combine_chunks()
            lists, best, counts, places = [], [], [], []
            postings = zip(table["_posting"].to_pylist(), table["_length"].to_pylist(), strict=True)
            for number, (blocks, count) in enumerate(postings, start):
                documents, often = part.unpacked(blocks, count)
                alive = there[documents]
                if not alive.any():
                    continue
                documents, often = documents_now[documents[alive]], often[alive]
                scores = weights(often, lengths[documents], average, len(lengths), len(documents))
                lists.append(pack_list(documents, often, scores, part.tail))
                best.append(float(scores.max()))
                counts.append(len(documents))
                if has_positions:
                    places.append(table[POSITIONS.name][number - start].values.filter(pa.array(alive)))
                numbers[number] = written
                written += 1
            if lists:
                columns = [pa.array(lists, LISTS[0].type), pa.array(best, pa.float32())]
                columns.append(pa.array(counts, pa.uint32()))
                if has_positions:
                    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
                    columns.append(
                        pa.ListArray.from_arrays(ends, pa.concat_arrays(places), type=POSITIONS.type)
                    )
                writer.write(columns)
        return numbers, writer.finish(source.metadata)


# Names of the options, as pylance has them -> what they are of a `Tokenizer`.
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
    """Rows by word."""

    name = "INVERTED"
    label = INVERTED_LABEL
    type_url = INVERTED_URL
    newest = INVERTED_NEWEST
    can_move = True

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return the version of the posting lists."""
        return FORMAT_VERSION

    @classmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values are texts, or lists of such."""
        return is_text(kind) or is_text_list(kind)

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column has texts, lists of texts, or JSON documents."""
        return field.is_json or cls.fits(kind)

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return True: documents are cut as others cut them."""
        return True

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return None: conditions ask for texts, not for words."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return how the text was cut, and in how many partitions it is."""
        parts = text_parts(self.segment)
        return {"params": parts[0].tokenizer.params() if parts else {}, "num_partitions": len(parts)}

    def stands_beside(self) -> bool:
        """Whether its files have the form that is written here: pylance merges no others with them."""
        return has_own_form(self.segment)

    def options(self) -> dict[str, Any]:
        """Return how the text of this segment was cut."""
        tokenizer = text_parts(self.segment)[0].tokenizer
        return {name: getattr(tokenizer, attribute) for name, attribute in _OPTIONS.items()}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse options that do not exist or cannot be used."""
        _tokenizer(options)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return how texts are cut."""
        return _tokenizer(options).details(BLOCK, FORMAT_VERSION)

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write a segment."""
        # Text is cut into words; what is stored in binary are JSON documents.
        tokenizer = replace(_tokenizer(target.options), documents=not cls.fits(rows.kind))
        return build_inverted(rows, target, tokenizer)

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        bounded: Callable[[RowSet], RowSet],
    ) -> dict[str, int] | None:
        """Let the parts of all segments be parts of one, which counts words across its parts."""
        return merge_inverted(segments, target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Write the documents of the rows that are still there; what can be copied is."""
        return remap_inverted(self.segment, target, remap)


def _tokenizer(options: Mapping[str, Any]) -> Tokenizer:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise OptionError(
            f"an index of text has no option {', '.join(unknown)}; there are {', '.join(_OPTIONS)}"
        )
    renamed = {_OPTIONS[name]: value for name, value in options.items()}
    if renamed.get("base") == "ngram":
        renamed = {"stem": False, "stops": False, **renamed}
    if "own_stops" in renamed:
        renamed["own_stops"] = tuple(renamed["own_stops"] or ())
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
