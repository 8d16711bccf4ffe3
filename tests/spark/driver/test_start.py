"""Two Python processes on one JVM: the first keeps answering, the second is told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from spark_lance.spark.base.compat import java_class
from spark_lance.spark.driver import start as enable


class Properties:
    """System properties of a JVM."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def getProperty(self, name: str) -> str | None:
        return self.values.get(name)

    def setProperty(self, name: str, value: str) -> None:
        self.values[name] = value


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> Properties:
    result = Properties()
    monkeypatch.setattr(enable, "java_class", lambda _jvm, _name: result)
    return result


def test_one_process_answers_as_often_as_it_likes(properties: Properties) -> None:
    assert enable.may_answer(None)
    first = dict(properties.values)
    assert enable.may_answer(None)
    assert properties.values == first


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")  # noqa: PTH110
def test_a_second_process_is_told_as_long_as_the_first_one_lives(
    properties: Properties, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = f"{other.pid} {enable._start_time(other.pid)} another"
        properties.values[enable._PROPERTY] = theirs
        with caplog.at_level(logging.WARNING):
            assert not enable.may_answer(None)
        assert str(other.pid) in caplog.text
        assert properties.values == {enable._PROPERTY: theirs}
        assert other.stdin is not None
        other.stdin.close()
    assert enable.may_answer(None)


def test_a_process_of_the_same_number_is_another_one(properties: Properties) -> None:
    properties.values[enable._PROPERTY] = f"{os.getpid()} long-ago another"
    assert enable.may_answer(None)


def test_a_driver_has_its_owner(spark: Any) -> None:
    import spark_lance

    spark_lance.enable(spark.newSession())
    system = java_class(spark._jvm, "java.lang.System")
    assert system.getProperty(enable._PROPERTY).split()[0] == str(os.getpid())
