"""INVERTED as one of the indices that are built by name; scans do not use it, text searches do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from spark_lance.errors import OptionError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.copies import RowAddressMap
from spark_lance.index.base.entries import Segment
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.text.inverted import (
    FORMAT_VERSION,
    INVERTED_LABEL,
    INVERTED_NEWEST,
    INVERTED_URL,
    build_inverted,
    has_own_form,
    text_parts,
)
from spark_lance.index.text.lists import is_text, is_text_list
from spark_lance.index.text.postings import BLOCK
from spark_lance.index.text.remap import merge_inverted, remap_inverted
from spark_lance.index.text.stop_words import LANGUAGES
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import RowSet

__all__ = ["Inverted"]

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
        raise OptionError(f"there is no language {renamed['language']!r}; there are {', '.join(LANGUAGES)}")
    try:
        return Tokenizer(**renamed)
    except UnsupportedFormatError as error:
        raise OptionError(str(error)) from error
