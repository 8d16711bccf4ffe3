"""The columns of a read, and as what types their values are seen."""

from __future__ import annotations

from dataclasses import dataclass

from spark_lance.spark.options.option_values import DESCRIBED_BLOBS, BlobHandling

__all__ = ["Projection"]


@dataclass(frozen=True)
class Projection:
    """The columns that a read was asked for, and as what types their values are seen.

    Attributes:
        columns: names of columns, system columns too; all of the table's if it is None.
        system_columns: system columns beside them.
        blob_handling: as what blob columns are read, see `schema.blobs`; "none" leaves a column out, unless
            `columns` names it.
        json_as: as what JSON columns are read, "string" or "variant".
        geometry_as: as what well-known binary is read, "binary" or "geometry".
    """

    columns: tuple[str, ...] | None = None
    system_columns: tuple[str, ...] = ()
    blob_handling: BlobHandling = DESCRIBED_BLOBS
    json_as: str = "string"
    geometry_as: str = "binary"
