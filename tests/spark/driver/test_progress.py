"""What is seen of long operations: Spark's UI, the log, bars."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.cli.output import Progress
from spark_lance.spark.driver import progress
from spark_lance.spark.driver.jobs import map_tasks
from spark_lance.spark.driver.progress import NotebookBar, create_bar, operation, step

GROUP, DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that leaves even small work to tasks, also where other tests have enabled all sessions."""
    session = spark.newSession()
    session.conf.set("spark.lance.planInDriver", "false")
    return session


def jobs(spark: SparkSession) -> dict[int, tuple[str | None, str | None]]:
    """Group and description of all jobs that Spark's UI would show.

    It shows the newest 1,000 (spark.ui.retainedJobs), and hears of them later than those who start them.
    """
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    result = spark._jsc.sc().statusStore().jobsList(None)
    messages = [result.apply(at) for at in range(result.size())]
    return {job.jobId(): (_or_none(job.jobGroup()), _or_none(job.description())) for job in messages}


def _or_none(option: Any) -> str | None:
    return str(option.get()) if option.isDefined() else None


def table(spark: SparkSession, folder: Path) -> LanceTable:
    path = str(folder / "t.lance")
    for start in (0, 300):
        ids = np.arange(start, start + 300)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.float32(ids).repeat(4)), 4)
        spark_lance.write_dataset(pa.table({"id": ids, "x": ids % 7, "v": vectors}), path, mode="append")
    return LanceTable.forPath(spark, path)


@pytest.mark.slow
def test_jobs_say_which_step_of_what_they_are(
    session: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_lance.spark.driver.progress")
    changed, before = table(session, tmp_path), jobs(session).keys()
    changed.createIndex("v", "IVF_FLAT", numPartitions=2)
    changed.createScalarIndex("x")
    changed.addColumns({"y": "x + 1"})
    changed.alterColumn("y", type="int")
    source = session.range(290, 310).selectExpr("id", "1 AS x")
    changed.alias("t").merge(source.alias("s"), "t.id = s.id").whenMatchedUpdate(set={"x": "s.x"}).execute()
    changed.update("id = 5", {"x": "0"})
    changed.delete("id % 100 = 7")
    changed.optimize().where("id < 400").executeCompaction()
    changed.optimize().executeZOrderBy("id", "x")
    message = {job: names for job, names in jobs(session).items() if job not in before}
    path = changed.path
    steps = {
        "index v_idx": {"train", "code 600 rows"},
        "index x_idx": {"index 600 rows"},
        "change of columns": {"write 2 fragments"},
        "merge": {"join and write rows"},
        "update": {"find and write rows"},
        "deletion": {"find rows"},
        "compaction": {"find fragments with matching rows", "rewrite 2 groups of fragments"},
        "clustering": {"sample the keys", "sort and write 594 rows"},
    }
    named = {(group, description) for group, description in message.values() if description is not None}
    expected = {
        (f"lance: {what} of {path}", f"{what} of {path}: {one}") for what, all in steps.items() for one in all
    }
    assert named == expected
    lines = [record.getMessage().rpartition(": finished in ")[0] for record in caplog.records]
    assert {description for _, description in expected} | {f"{what} of {path}" for what in steps} == set(
        lines
    )
    assert session.sparkContext.getLocalProperty(GROUP) is None
    assert session.sparkContext.getLocalProperty(DESCRIPTION) is None


def test_the_callers_names_come_back(session: SparkSession, tmp_path: Path) -> None:
    changed, context, before = table(session, tmp_path), session.sparkContext, jobs(session).keys()
    context.setJobGroup("nightly", "the nightly load")
    try:
        changed.delete("id = 3")
        with pytest.raises(ZeroDivisionError), operation(session, "test", "here"), step(session, "divide"):
            raise ZeroDivisionError
        assert context.getLocalProperty(GROUP) == "nightly"
        assert context.getLocalProperty(DESCRIPTION) == "the nightly load"
    finally:
        context.setLocalProperty(GROUP, None)  # type: ignore[arg-type]
        context.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]
    messages = {names for job, names in jobs(session).items() if job not in before}
    assert ("nightly", f"deletion of {changed.path}: find rows") in messages


class Bar(list[tuple[str, int, int, str]]):
    """Keeps what it is told."""

    def __call__(self, *told: Any) -> None:
        self.append(told)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.append(("left", 0, 0, ""))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slowly(number: int) -> int:
    return sum(i % 3 for i in range(300_000)) * number


def test_bars_hear_of_tasks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar()
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "create_bar", lambda spark, what: bar)
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.02)
    with operation(spark, "test", "here"):
        with operation(spark, "part", "here"), step(spark, "compute"):
            map_tasks(spark, range(6), slowly)
        message, bar[:] = bar.copy(), []
        map_tasks(spark, range(2), slowly)
    assert message
    assert {(name, unit) for name, _, _, unit in message} == {("compute", "tasks")}
    assert all(0 <= done <= total for _, done, total, _ in message)
    assert max(total for _, _, total, _ in message) >= 6
    assert bar == [("left", 0, 0, "")]  # what is no step is not watched


def settings(**settings: str) -> Any:
    return SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: settings.get(name, default)))


def test_bars_are_drawn_where_somebody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert create_bar(settings(), "work") is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(create_bar(settings(), "work"), Progress)
    assert create_bar(settings(**{"spark.lance.progress": "false"}), "work") is None
    assert create_bar(settings(**{"spark.ui.showConsoleProgress": "true"}), "work") is None


def test_notebooks_get_a_bar_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    def display(page: str, *, display_id: bool) -> Any:
        assert display_id
        pages.append(page)
        return SimpleNamespace(update=pages.append)

    kernel = type("ZMQInteractiveShell", (), {})()
    notebook, shown = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = lambda: kernel  # type: ignore[attr-defined]
    shown.HTML, shown.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.0)
    bar = create_bar(settings(), "work")
    assert isinstance(bar, NotebookBar)
    with bar:
        bar("early", 1, 2, "tasks")
    assert not pages
    with NotebookBar("work", patience=0.0) as bar:
        bar("rows <b>", 1000, 4000, "tasks")
        bar("files", 3, 0, "files")
    assert pages == [
        "rows &lt;b&gt; <progress value='1000' max='4000'></progress> 1,000 of 4,000 tasks",
        "files <progress></progress> 3 files",
        "",
    ]


def test_reports_of_several_threads_draw_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def display(page: str, display_id: bool) -> Any:
        time.sleep(0.05)
        drawn.append(page)
        return SimpleNamespace(update=lambda page: None)

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    monkeypatch.setattr(progress, "_INTERVAL_SECONDS", 0.0)
    bar = NotebookBar("work", patience=0.0)
    with bar:
        threads = [threading.Thread(target=bar, args=("rows", n, 4, "tasks")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(drawn) == 1


def test_a_report_after_the_end_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    display = SimpleNamespace(HTML=str, display=lambda page, display_id: drawn.append(page))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    bar = NotebookBar("work", patience=0.0)
    with bar:
        pass
    bar("rows", 1, 2, "tasks")
    assert not drawn
