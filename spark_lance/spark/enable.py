"""`spark_lance.enable`: what a session gets beyond the data source; see docs/sql.md for the catalog.

It imports the SQL catalog (sql/, which uses `LanceTable`), so no other module of the Spark layer imports it.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql.session import SparkSession

from spark_lance.errors import OptionError
from spark_lance.spark.base.compat import SESSION_CATALOG, avoid_waiting_udfs, has_jvm
from spark_lance.spark.driver.arguments import check_running, check_session
from spark_lance.spark.driver.interpreters import check_workers
from spark_lance.spark.driver.start import start_parts
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.sql.register import enable_request, take_save_modes, tell_of_missing

__all__ = ["enable"]


def enable(
    spark: SparkSession,
    *,
    new_sessions: bool = False,
    catalog: str = "lance",
    root: str | None = None,
    save_modes: bool = False,
) -> SparkSession:
    """Let queries read only the columns and rows of Lance tables that they need, and SQL name Lance tables.

    Filters and limits reach the tables, and columns that a query does not use are not fetched. Rows are
    counted from metadata. Spark learns the sizes of small tables, so that it can broadcast them. Everything
    but the catalog works without this call, too. Queries get the function `lance_blob(blob, offset, length)`.
    Calling it again is harmless.

    Args:
        spark: a session, classic or of Spark Connect (which gets the function `lance_blob` only).
        new_sessions: do the same for all sessions that the driver makes from now on, those of Spark Connect
            clients too if it is their server.
        catalog: the name of the SQL catalog of Lance tables that the session gets; with "spark_catalog" the
            session's own catalog keeps Lance tables next to those of other formats.
        root: the folder of the tables that this catalog has by name; without one it has tables by path only,
            unless the setting `spark.sql.catalog.<catalog>.root` names one.
        save_modes: let `df.write.format("lance").save(path)` make tables in the modes `errorifexists` (the
            default) and `ignore`, too, in all sessions of the driver. Reads with a schema given by
            `.schema(...)` are refused by Spark then. It cannot be taken back.

    Returns:
        The session, which is the calling thread's active one now.

    Raises:
        OptionTypeError: `spark` is not a session.
        OptionError: the session has been stopped, or the session's own catalog was given a root.
    """
    check_session(spark, "enable(spark)")
    check_running(spark)
    catalog = SESSION_CATALOG if catalog.lower() == SESSION_CATALOG else catalog
    if catalog == SESSION_CATALOG and root is not None:
        raise OptionError(
            "the session's own catalog knows where its tables are: leave out root, and set "
            "spark.sql.warehouse.dir before the session starts"
        )
    if not has_jvm(spark):
        _register_blob_function(spark)
        return spark
    avoid_waiting_udfs(spark)
    if not check_workers(spark):
        _register_format(spark)
    result = start_parts(
        spark, enable_request(spark, LanceDataSource, catalog, root), new_sessions=new_sessions
    )
    tell_of_missing(result.missing, is_explicit=root is not None)
    if save_modes:
        take_save_modes(spark)
    return spark


def _register_blob_function(spark: SparkSession) -> None:
    """Give a session of Spark Connect the function `lance_blob`, which classic ones make at its first use."""
    # Not imported at the top: that takes as long as the rest of the call in a classic session.
    from spark_lance.spark.worker.blob_function import BLOB_FUNCTION, blob_function

    spark.udf.register(BLOB_FUNCTION, blob_function())


def _register_format(spark: SparkSession) -> None:
    """Let a session find the format though Spark's own search for it fails."""
    try:
        spark.dataSource.register(LanceDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
