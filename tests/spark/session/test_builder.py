"""Settings that let small queries be fast: set by the builder, and missed aloud."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.session import builder
from spark_lance.spark.session.builder import FAST_SETTINGS, session_builder, tell_of_settings
from spark_lance.spark.session.enable import enable


def test_a_builder_has_the_settings_and_takes_others() -> None:
    made = session_builder().config("spark.sql.execution.arrow.pyspark.enabled", "false")
    options = made._options
    assert options["spark.python.daemon.module"] == "spark_lance.spark.daemon"
    assert options["spark.sql.execution.arrow.pyspark.enabled"] == "false"
    assert FAST_SETTINGS.keys() <= options.keys()
    # Other builders know nothing of it.
    assert "spark.python.daemon.module" not in SparkSession.builder._options
    assert spark_lance.session_builder is session_builder


def test_a_session_without_them_is_told_once(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    builder._tell.cache_clear()
    own = spark.newSession()
    with caplog.at_level("INFO", builder.__name__):
        for _ in range(3):
            enable(own)
    (record,) = caplog.records
    for name, (value, _) in FAST_SETTINGS.items():
        assert f"{name}={value}" in record.getMessage()
    caplog.clear()
    have = {name: value for name, (value, _) in FAST_SETTINGS.items()}
    with caplog.at_level("INFO", builder.__name__):
        tell_of_settings(have)
    assert not caplog.records
