"""spark-submit on a cluster whose hosts lack the package: it arrives in a packed environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.cluster.standalone import ROOT, Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import spark_lance

spark = SparkSession.builder.getOrCreate()
spark_lance.enable(spark, root=sys.argv[1])
spark.range(100_000).repartition(4).write.format("lance").mode("append").save(sys.argv[1] + "/t.lance")
spark.sql("DELETE FROM lance.t WHERE id < 50000")
spark.conf.set("spark.lance.localRows", 0)
assert spark.table("lance.t").selectExpr("sum(id)").first()[0] == sum(range(50_000, 100_000))

def place(_):
    import spark_lance
    return [spark_lance.__file__]

print("package:", *set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(place).collect()))
"""


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose workers do not find the package."""
    with Cluster(tmp_path_factory.mktemp("bare"), pythonpath="").running() as running:
        yield running


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with a copy of the package; dependencies are those of this interpreter."""
    home = folder / "environment"
    venv.create(home, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    shutil.copytree(ROOT / "spark_lance", packages / "spark_lance")
    shutil.copy(ROOT / "pyspark_lance.py", packages)
    # A line of a .pth file adds a folder, but not the .pth files in it: an editable install stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def submit(cluster: Cluster, folder: Path, *options: str, **environment: str) -> str:
    """Run the program by spark-submit and return what it prints."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.url, *options]
    for setting in ("spark.driver.host=127.0.0.1", "spark.executor.memory=768m", "spark.ui.enabled=false"):
        command += ["--conf", setting]
    run = subprocess.run(
        [*command, str(program), str(folder / "root")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_DRIVER_PYTHON": sys.executable, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    problems = [line for line in run.stderr.splitlines() if " INFO " not in line]
    assert run.returncode == 0, "\n".join(problems)[-5000:]
    return run.stdout


def test_packed_environment(bare_cluster: Cluster, tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(make_environment(tmp_path), ".")
    output = submit(
        bare_cluster,
        tmp_path,
        "--archives",
        f"{archive}#environment",
        PYSPARK_PYTHON="./environment/bin/python",
    )
    assert "/environment/lib/" in output.split("package:")[1]
    assert str(bare_cluster.folder) in output.split("package:")[1]
