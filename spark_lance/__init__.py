"""Lance tables in Spark and in plain Python: an independent implementation of the Lance format.

spark.read.format("lance").load(path)                 with Spark; needs no import, only the installed package
spark_lance.dataset(path).to_table(columns=["id"])    the same table without Spark
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_lance.release import RELEASE

if TYPE_CHECKING:
    from spark_lance import errors, query
    from spark_lance.datasets.building import write_fragments
    from spark_lance.datasets.dataset import LanceDataset, LanceFragment, dataset, write_dataset
    from spark_lance.datasets.fragment_metadata import FragmentMetadata
    from spark_lance.datasets.operations import LanceOperation, Transaction
    from spark_lance.datasets.scan_request import ColumnOrdering
    from spark_lance.datasets.scanner import LanceScanner
    from spark_lance.io.retry import RetryPolicy
    from spark_lance.spark.driver.builder import session_builder
    from spark_lance.spark.enable import enable
    from spark_lance.spark.source import LanceDataSource
    from spark_lance.spark.table.table import LanceTable
    from spark_lance.table.columns.new_columns import batch_udf
    from spark_lance.table.commits.commit_options import commit_options

__version__ = RELEASE
__all__ = [
    "ColumnOrdering",
    "FragmentMetadata",
    "LanceDataSource",
    "LanceDataset",
    "LanceFragment",
    "LanceOperation",
    "LanceScanner",
    "LanceTable",
    "RetryPolicy",
    "Transaction",
    "__version__",
    "batch_udf",
    "commit_options",
    "dataset",
    "enable",
    "errors",
    "query",
    "session_builder",
    "write_dataset",
    "write_fragments",
]

_HOMES = {
    "ColumnOrdering": "spark_lance.datasets.scan_request",
    "FragmentMetadata": "spark_lance.datasets.fragment_metadata",
    "LanceDataSource": "spark_lance.spark.source",
    "LanceDataset": "spark_lance.datasets.dataset",
    "LanceFragment": "spark_lance.datasets.dataset",
    "LanceOperation": "spark_lance.datasets.operations",
    "LanceScanner": "spark_lance.datasets.scanner",
    "LanceTable": "spark_lance.spark.table.table",
    "RetryPolicy": "spark_lance.io.retry",
    "Transaction": "spark_lance.datasets.operations",
    "batch_udf": "spark_lance.table.columns.new_columns",
    "commit_options": "spark_lance.table.commits.commit_options",
    "dataset": "spark_lance.datasets.dataset",
    "enable": "spark_lance.spark.enable",
    "session_builder": "spark_lance.spark.driver.builder",
    "write_dataset": "spark_lance.datasets.dataset",
    "write_fragments": "spark_lance.datasets.building",
}
_MODULES = {name: f"spark_lance.{name}" for name in ("compat", "errors", "query")}


def __getattr__(name: str) -> Any:
    # Spark imports this package in every planning worker, so modules are only loaded on first use.
    if name in _MODULES:
        return import_module(_MODULES[name])
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    return getattr(import_module(home), name)


def _hint(name: str) -> str:
    if name.startswith("_"):
        return ""
    from spark_lance.errors import suggestion

    return {"open": ": write spark_lance.dataset(path)"}.get(name) or suggestion(name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
