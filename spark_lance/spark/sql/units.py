"""The Java side of the SQL catalog, in units that are compiled when Spark first asks for a class of them.

Whoever names no table in SQL compiles nothing: `LanceUnits` answers the class loader that Spark asks, and it
compiles a unit, or finds it in the cache folder, when a class of it is needed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from spark_lance.spark.session import java_classes
from spark_lance.spark.session.start import PUBLISHED

__all__ = ["CHOICES", "compiled_units", "unit_names"]

_CATALOG, _SPARK = "org.lance.spark.catalog", "org.apache.spark.sql.connector.catalog"
# Name of a class -> the units that it may extend, best first, each with an interface of Spark that it needs.
CHOICES = {
    f"{_CATALOG}.LanceCatalog": [
        [f"{_CATALOG}.LanceViewCatalog", f"{_SPARK}.RelationCatalog"],
        [f"{_CATALOG}.LanceTableCatalog", f"{_SPARK}.TableCatalog"],
    ]
}


def unit_names() -> list[str]:
    """Return the classes that are compiled when they are first used, sorted: one for each source file.

    A class that does not compile with a release of Spark is missing there; the others are not affected.
    """
    files = java_classes.FOLDER.glob("org/**/*.java")
    names = {".".join(file.relative_to(java_classes.FOLDER).with_suffix("").parts) for file in files}
    return sorted(names - set(PUBLISHED))


def compiled_units(jvm: Any) -> Path:
    """Return the folder in which units of these sources are kept once they are compiled."""
    content = hashlib.sha256()
    for name in unit_names():
        content.update(java_classes.source(name).encode() + b"\0")
    content.update(repr(CHOICES).encode())
    return java_classes.cache_folder(jvm) / f"units-{content.hexdigest()[:16]}"
