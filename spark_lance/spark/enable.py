"""`spark_lance.enable`: adds push-down, SQL and functions to a session; see docs/sql.md for the catalog.

It imports the SQL catalog (sql/, which uses `LanceTable`), so no other module of the Spark layer imports it.
"""

from __future__ import annotations

import os

from pyspark.errors import AnalysisException
from pyspark.sql.session import SparkSession

from spark_lance.datasets.spelling import suggest_arguments
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.spark.base.compat import SESSION_CATALOG, avoid_waiting_udfs, has_jvm
from spark_lance.spark.driver.arguments import check_running, check_session
from spark_lance.spark.driver.interpreters import check_workers
from spark_lance.spark.driver.start import start_parts
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.sql.register import enable_request, enable_save_modes, log_missing_parts

__all__ = ["enable"]


@suggest_arguments(path="root='/tables'", warehouse="root='/tables'", name="catalog='lance'")
def enable(
    spark: SparkSession,
    *,
    new_sessions: bool = False,
    catalog: str = "lance",
    root: str | None = None,
    save_modes: bool = False,
) -> SparkSession:
    """Enable push-down of columns, filters and limits to Lance tables, and the SQL catalog.

    Queries then fetch only the columns that they use, and count rows from metadata. Spark learns the sizes of
    tables, so that it can broadcast small ones. Queries also get the function
    `lance_blob(blob, offset, length)`. Everything but the catalog works without this call, too, but reads
    more. Calling `enable` again is harmless.

    Args:
        spark: a session, classic or of Spark Connect (which gets the function `lance_blob` only).
        new_sessions: do the same for all sessions that the driver creates from now on. On a Spark Connect
            server these include the sessions of clients.
        catalog: name of the SQL catalog of Lance tables in this session. With "spark_catalog" the session's
            own catalog holds Lance tables next to tables of other formats.
        root: folder of the catalog's named tables. Without it, and without the setting
            `spark.sql.catalog.<catalog>.root`, the catalog has tables by path only.
        save_modes: let `df.write.format("lance").save(path)` create tables in the modes `errorifexists` (the
            default) and `ignore`, too, in all sessions of the driver. Spark then refuses reads with a schema
            from `.schema(...)`. This cannot be undone.

    Returns:
        The session, now active in the calling thread.

    Raises:
        OptionTypeError: `spark` is not a session.
        OptionError: the session has been stopped, or the session's own catalog was given a root.
    """
    check_session(spark, "enable(spark)")
    check_running(spark)
    if not isinstance(root, str | os.PathLike | None):
        raise OptionTypeError(f"root is the path or URI of a folder, such as '/tables', not {root!r}")
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
    log_missing_parts(result.missing, is_explicit=root is not None)
    if save_modes:
        enable_save_modes(spark)
    return spark


def _register_blob_function(spark: SparkSession) -> None:
    """Register `lance_blob` in a Spark Connect session. Classic sessions create it at its first use."""
    # Imported here because a classic session does not need it, and the import takes as long as the call.
    from spark_lance.spark.worker.blob_function import BLOB_FUNCTION, blob_function

    spark.udf.register(BLOB_FUNCTION, blob_function())


def _register_format(spark: SparkSession) -> None:
    """Register the format in a session, for when Spark's own discovery of sources fails."""
    try:
        spark.dataSource.register(LanceDataSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
