"""Converts stored geometries to Spark's types GEOMETRY and GEOGRAPHY (4.1 and newer).

Spark exchanges a value as

    struct<srid: int32, wkb: binary>     the child `wkb` with metadata geometry (or geography) = true, srid

A table stores well-known binary with the extension type geoarrow.wkb, whose metadata names the spatial
reference: {"crs": "OGC:CRS84"}, for a geography also "edges": "spherical". (GeoArrow format, extension
metadata.)
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
from pyspark.errors import IllegalArgumentException

from spark_lance.errors import SchemaError
from spark_lance.expressions.geo_functions import extension_name
from spark_lance.file.base.extensions import EXTENSION_METADATA, WELL_KNOWN_BINARY
from spark_lance.io.stored_json import parse_object
from spark_lance.spark.base.compat import GeographyType, GeometryType, geometry_type, spatial_reference

_NO_REFERENCE, _WORLD = 0, 4326
# Longitude and latitude. GeoArrow's coordinates are in this order, whatever the authority defines.
_WORLD_NAMES = ("OGC:CRS84", "EPSG:4326")


def is_spatial(spark: st.DataType) -> bool:
    """Return whether a Spark type is GEOMETRY or GEOGRAPHY."""
    return any(kind is not None and isinstance(spark, kind) for kind in (GeometryType, GeographyType))


def is_spatial_field(field: pa.Field) -> bool:
    """Return whether a column can be read as GEOMETRY or GEOGRAPHY."""
    return extension_name(field) in WELL_KNOWN_BINARY


def _is_geography(spark: st.DataType) -> bool:
    return GeographyType is not None and isinstance(spark, GeographyType)


def carrier_type(spark: Any) -> pa.DataType:
    """Return the carrier: the Arrow type in which Spark exchanges values of GEOMETRY or GEOGRAPHY."""
    name = "geography" if _is_geography(spark) else "geometry"
    metadata = {name: "true", "srid": str(spark.srid)}
    return pa.struct(
        [
            pa.field("srid", pa.int32(), nullable=False),
            pa.field("wkb", pa.binary(), nullable=False, metadata=metadata),
        ]
    )


def is_carrier(arrow: pa.DataType) -> bool:
    """Return whether an Arrow type is a carrier of geometries."""
    if not pa.types.is_struct(arrow) or [field.name for field in arrow] != ["srid", "wkb"]:
        return False
    metadata = arrow.field("wkb").metadata or {}
    return b"geometry" in metadata or b"geography" in metadata


def to_carrier(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert well-known binary to a carrier. The type of the carrier has the spatial reference."""
    binary = values.storage if isinstance(values, pa.ExtensionArray) else values
    binary = binary.cast(pa.binary())
    srid = int((target.field("wkb").metadata or {}).get(b"srid", b"0"))
    references = pa.array(np.full(len(binary), max(srid, _NO_REFERENCE), np.int32))
    mask = binary.is_null() if binary.null_count else None
    return pa.StructArray.from_arrays([references, binary.fill_null(b"")], fields=list(target), mask=mask)


def spatial_type(field: pa.Field) -> st.DataType:
    """Return the Spark type of a column of well-known binary, by its spatial reference.

    Raises:
        SchemaError: this release of Spark has no such types.
    """
    if GeometryType is None or GeographyType is None:
        raise SchemaError("geometry_as=geometry needs the types of Spark 4.1 and newer")
    text = (field.metadata or {}).get(EXTENSION_METADATA.encode(), b"")
    if isinstance(field.type, pa.BaseExtensionType):
        text = field.type.__arrow_ext_serialize__()
    try:
        metadata = parse_object(text or b"{}")
    except ValueError:
        metadata = {}
    if metadata.get("edges") == "spherical":
        return GeographyType(_WORLD)  # type: ignore[call-arg]
    name = _reference_name(metadata.get("crs"))
    if name in _WORLD_NAMES:
        return GeometryType(_WORLD)  # type: ignore[call-arg]
    try:
        return geometry_type(name)
    except IllegalArgumentException:
        return GeometryType(_NO_REFERENCE)  # type: ignore[call-arg]


def _reference_name(reference: Any) -> str:
    """Return a spatial reference as authority:code; "" if it is missing or has another form."""
    if isinstance(reference, dict) and isinstance(reference.get("id"), dict):
        return f"{reference['id'].get('authority')}:{reference['id'].get('code')}"
    return reference if isinstance(reference, str) else ""


def spatial_metadata(spark: Any) -> str:
    """Return the extension metadata of a column for a Spark type GEOMETRY or GEOGRAPHY."""
    metadata: dict[str, str] = {}
    if spark.srid > _NO_REFERENCE:
        metadata["crs"] = spatial_reference(spark)
    if _is_geography(spark):
        metadata["edges"] = "spherical"
    return json.dumps(metadata)
