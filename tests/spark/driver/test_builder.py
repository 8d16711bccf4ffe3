"""Settings that let small queries be fast: set by the builder, and missed aloud."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.redaction import SECRET_NAMES
from spark_lance.spark.driver import builder
from spark_lance.spark.driver.builder import FAST_SETTINGS, log_missing_settings, session_builder
from spark_lance.spark.driver.start import EnableRequest, start_parts
from spark_lance.spark.worker import sockets

SOCKETS, FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"
REDACTION = "spark.redaction.regex"
JOB = """
import os, sys
os.umask(0)
import spark_lance
builder = spark_lance.session_builder().master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
folder = spark.conf.get("spark.python.unix.domain.socket.dir")
def sockets(_):
    return sorted(name for name in os.listdir(folder) if name.endswith(".sock"))
there = spark.sparkContext.parallelize([0], 1).map(sockets).collect()[0]
print(folder, oct(os.stat(folder).st_mode & 0o777), bool(there))
print(spark.sparkContext.getConf().get("spark.redaction.regex"))
spark.stop()
"""


def test_a_builder_has_the_settings_and_takes_others() -> None:
    result = session_builder().config("spark.sql.execution.arrow.pyspark.enabled", "false")
    options = result._options
    assert options["spark.python.daemon.module"] == "spark_lance.spark.daemon"
    assert options["spark.sql.execution.arrow.pyspark.enabled"] == "false"
    assert FAST_SETTINGS.keys() - {SOCKETS} <= options.keys()
    # Other builders know nothing of it.
    assert "spark.python.daemon.module" not in SparkSession.builder._options
    assert spark_lance.session_builder is session_builder


def test_a_session_without_them_is_told_once(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    builder._log_missing.cache_clear()
    own = spark.newSession()
    with caplog.at_level("INFO", builder.__name__):
        for _ in range(3):
            start_parts(own, EnableRequest())
    (record,) = caplog.records
    for name, (value, _) in FAST_SETTINGS.items():
        assert f"{name}={value}" in record.getMessage()
    caplog.clear()
    have = {name: value for name, (value, _) in FAST_SETTINGS.items()}
    with caplog.at_level("INFO", builder.__name__):
        log_missing_settings(have)
    assert not caplog.records


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No driver runs, and nothing is set by others; the folder of spark-defaults.conf."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_sockets_are_in_a_folder_of_this_user_alone(no_driver: Path) -> None:
    umask = os.umask(0)
    try:
        settings = builder._late_settings({"spark.master": "local[2]"})
    finally:
        os.umask(umask)
    assert settings[SOCKETS] == "true"
    about = Path(settings[FOLDER]).lstat()
    assert stat.S_ISDIR(about.st_mode)
    assert stat.S_IMODE(about.st_mode) == 0o700
    assert about.st_uid == os.getuid()
    assert len(settings[FOLDER]) + 42 < 104


@pytest.mark.parametrize(
    "options",
    [
        {"spark.master": "spark://host:7077"},
        {"spark.master": "yarn"},
        {SOCKETS: "false"},
        {SOCKETS: "true"},
        {FOLDER: "/run/mine"},
    ],
)
def test_sockets_of_clusters_and_of_users_stay_as_they_are(no_driver: Path, options: dict[str, str]) -> None:
    assert not builder._late_settings(options).keys() & {SOCKETS, FOLDER}


def test_what_a_user_has_set_is_not_set_again(no_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert builder._late_settings({})[REDACTION] == SECRET_NAMES
    assert REDACTION not in builder._late_settings({REDACTION: "mine"})
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {REDACTION}=theirs --master yarn pyspark-shell")
    assert not builder._late_settings({}).keys()
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (no_driver / "spark-defaults.conf").write_text(
        f"# {REDACTION} x\n{REDACTION}   (?i)admins\n{SOCKETS}=false\n"
    )
    assert not builder._late_settings({}).keys()


def test_a_running_driver_keeps_its_settings(spark: SparkSession) -> None:
    assert not builder._late_settings({})


def test_a_daemon_moves_its_socket_out_of_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    own = sockets.private_folder()
    assert own is not None
    link.symlink_to(own)
    for folder in (shared, link, tmp_path / "missing"):
        monkeypatch.setenv(sockets._FOLDER, str(folder))
        sockets.protect_daemon()
        moved = Path(os.environ[sockets._FOLDER])
        assert moved != folder
        assert stat.S_IMODE(moved.stat().st_mode) == 0o700
        moved.rmdir()
    monkeypatch.setenv(sockets._FOLDER, str(own))
    sockets.protect_daemon()
    assert os.environ[sockets._FOLDER] == str(own)
    own.rmdir()


@pytest.mark.slow
def test_a_driver_with_a_permissive_umask(tmp_path: Path) -> None:
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", JOB], capture_output=True, text=True, check=True, env=environment
    )
    first, pattern = done.stdout.splitlines()
    folder, mode, has_sockets = first.split()
    assert (mode, has_sockets) == ("0o700", "True")
    assert pattern == SECRET_NAMES
    assert not Path(folder).exists()
