"""The Java side of the SQL catalog, in units that are compiled when Spark first asks for a class of them.

Whoever names no table in SQL compiles nothing: `LanceUnits` answers the class loader that Spark asks, and it
compiles a unit, or finds it in the cache folder, when a class of it is needed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from spark_lance.spark.session import java_classes

__all__ = ["UNITS", "compiled_units"]

# A source file each, named like its class in the package spark_lance.sql. One that does not fit a release of
# Spark is missing there, and nothing else.
UNITS = (
    "Bridge",
    "LanceCatalog",
    "LanceConditions",
    "LanceTable",
    "LanceEvolving",
    "LanceRelations",
    "LanceProcedures",
    "LanceMessage",
    "LanceRing",
    "LanceColumnVector",
    "LanceColumns",
    "LanceHeldColumns",
    "LanceRowNode",
    "LanceRowNodes",
    "LanceColumnCopies",
    "LanceRowColumns",
    "LanceRowBatches",
    "LanceTransport",
    "LanceSaveModes",
    "LanceAmount",
    "LancePushed",
    "LanceDocuments",
    "LanceRows",
    "LanceTaskScan",
    "LanceColumnScan",
    "LanceScan",
    "LanceLocal",
    "LanceWrite",
    "LanceRoutes",
    "LanceAtHand",
    "LanceWriteRows",
    "LanceWriteColumns",
    "LancePaths",
    "LanceTarget",
    "LanceSpelling",
    "LanceQueries",
    "LanceRenaming",
    "LanceAssignments",
    "LanceChange",
    "LanceRowLevel",
    "LanceLateral",
    "LanceSearch",
    "LanceDistance",
    "LanceNearest",
    "LanceBlob",
)


def compiled_units(jvm: Any) -> Path:
    """Return the folder in which units of these sources are kept once they are compiled."""
    content = hashlib.sha256()
    for name in UNITS:
        content.update(java_classes.source(f"{name}.java").encode() + b"\0")
    return java_classes.cache_folder(jvm) / f"units-{content.hexdigest()[:16]}"
