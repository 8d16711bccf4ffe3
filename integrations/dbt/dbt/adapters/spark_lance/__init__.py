"""The dbt adapter `spark_lance`: tables of a Lance catalog, in a Spark session of dbt's own process."""

from dbt.adapters.base import AdapterPlugin
from dbt.adapters.spark_lance.connections import LanceCredentials
from dbt.adapters.spark_lance.impl import LanceAdapter
from dbt.include import spark_lance

__all__ = ["Plugin"]

Plugin = AdapterPlugin(
    adapter=LanceAdapter,
    credentials=LanceCredentials,
    include_path=spark_lance.PACKAGE_PATH,
    dependencies=["spark"],
)
