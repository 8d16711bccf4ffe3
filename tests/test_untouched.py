"""What a test leaves behind is seen, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from tests.conftest import LONGEST, ROOT
from tests.untouched import changes, restored_for_later_sessions, state


def test_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(None)
    assert changes(before, state(None)) == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    environment, folder = changes(before, state(None))
    assert environment.startswith("environment: +AWS_REGION=eu-central-1")
    assert f"+{tmp_path}" in folder


def test_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """On a session of its own, whose state is told as that of the shared one is."""
    own = spark.newSession()
    before = state(own)
    own.conf.set("spark.sql.shuffle.partitions", "7")
    own.range(1).createOrReplaceTempView("left_behind")
    settings, views = changes(before, state(own))
    assert "+spark.sql.shuffle.partitions -> 7" in settings
    assert views == "temporary views: +left_behind"
    spark_lance.enable(own, catalog="kept", root=str(tmp_path))
    own.sql("USE kept")
    message = dict(line.split(": ", 1) for line in changes(before, state(own)))
    assert "+kept" in message["current catalog"]
    assert "+spark.sql.catalog.kept -> org.lance.spark.catalog.LanceCatalog" in message["settings"]
    # Sessions that are made later have nothing of it.
    assert changes(before, state(spark)) == []


def test_settings_of_later_sessions_are_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    before = state(spark)
    with restored_for_later_sessions(spark):
        spark_lance.enable(spark.newSession(), new_sessions=True, catalog="gone", root=str(tmp_path))
        (result,) = changes(before, state(spark))
        assert f"+spark.sql.catalog.gone.root={tmp_path}" in result
        assert spark.newSession().conf.get("spark.sql.catalog.gone.root") == str(tmp_path)
    assert changes(before, state(spark)) == []
    assert spark.newSession().conf.get("spark.sql.catalog.gone.root", None) is None


@pytest.mark.parametrize("name", LONGEST)
def test_what_runs_first_is_there(name: str) -> None:
    assert (ROOT / "tests" / name).exists()
