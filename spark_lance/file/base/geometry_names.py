"""Names of the Arrow extension types whose values are geometries. (GeoArrow format, extension types.)"""

from __future__ import annotations

# Types of coordinates -> how deep these lie in lists.
NATIVE_DEPTHS = {
    "geoarrow.point": 0,
    "geoarrow.linestring": 1,
    "geoarrow.multipoint": 1,
    "geoarrow.polygon": 2,
    "geoarrow.multilinestring": 2,
    "geoarrow.multipolygon": 3,
}
BOX = "geoarrow.box"
WELL_KNOWN_BINARY = ("geoarrow.wkb", "ogc.wkb")
WELL_KNOWN_TEXT = ("geoarrow.wkt",)
GEOMETRY_TYPES = (*NATIVE_DEPTHS, BOX, *WELL_KNOWN_BINARY, *WELL_KNOWN_TEXT)
