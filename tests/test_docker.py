"""The compose file holds together, and the cells of its notebook run, against servers in a test process."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_lance.spark.java import prepare_environment
from tests.cluster.standalone import eventually, free_ports
from tests.conftest import ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
NOTEBOOK = json.loads((ROOT / "docker" / "notebook.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
# The part of the Compose specification that the file uses.
SERVICE_KEYS = {
    "image", "build", "command", "entrypoint", "environment", "depends_on", "ports", "volumes", "healthcheck",
    "hostname",
}  # fmt: skip


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    result = yaml.safe_load(COMPOSE)
    assert set(result) == {"name", "x-spark", "services", "volumes"}
    services: dict[str, Any] = result["services"]
    for service in services.values():
        used = {str(volume).partition(":")[0] for volume in service.get("volumes", ())}
        assert used <= set(result["volumes"])
    return services


def test_services_wait_for_services_that_say_when_they_are_ready(services: dict[str, Any]) -> None:
    ports: list[str] = []
    for name, service in services.items():
        assert set(service) <= SERVICE_KEYS, name
        assert set(service.get("healthcheck", ())) <= {"test", "interval", "timeout", "retries"}, name
        for other, expected in service.get("depends_on", {}).items():
            assert other in services, name
            if expected["condition"] == "service_healthy":
                assert services[other]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        for port in service.get("ports", ()):
            number = re.fullmatch(r"127\.0\.0\.1:\$\{([A-Z_]+)_PORT:-(\d+)\}:(\d+)", port)
            assert number, "ports are open to this machine only, and variables choose them"
            assert number[2] == number[3]
            ports.append(number[1])
        image = service.get("image", "")
        assert image == "spark-lance:local" or re.search(r":.*\d", image), "images are pinned"
    assert sorted(ports) == sorted(set(re.findall(r"\$\{([A-Z_]+)_PORT:", COMPOSE)))
    assert all(f"{port}_PORT" in COMPOSE.partition("name:")[0] for port in ports), (
        "the head lists the variables"
    )
    assert services["spark-master"]["build"]["dockerfile"] == "docker/Dockerfile"


def test_what_the_image_copies_is_there_and_pinned() -> None:
    for line in re.findall(r"^COPY (?:--\S+ )?(.*) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / path).exists() for path in line.split()), line
    for package in ("jupyterlab", "matplotlib"):
        assert re.search(rf"{package}==[\d.]+", DOCKERFILE), package


def test_the_notebook_is_clean_and_uses_what_the_file_starts() -> None:
    assert all(cell.get("outputs", []) == [] for cell in NOTEBOOK["cells"])
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    text = "\n".join(CELLS)
    assert "s3://lance/" in text
    assert "s3+ddb://lance/" in text
    assert "spark://spark-master:7077" in text
    assert all(word in CELLS[0] for word in ("spark_lance.enable(", "MERGE INTO", "vector_search("))
    for number, cell in enumerate(CELLS):
        compile(cell, f"cell {number}", "exec")


def test_docker_accepts_the_file() -> None:
    compose = ["docker", "compose"]
    if (
        shutil.which("docker") is None
        or subprocess.run([*compose, "version"], capture_output=True).returncode
    ):
        pytest.skip("needs docker with its plugin compose")
    subprocess.run([*compose, "config", "--quiet"], cwd=ROOT, check=True)


@pytest.mark.slow
def test_start_commands_of_spark_run_without_docker(services: dict[str, Any], tmp_path: Path) -> None:
    """Start master and worker as the file does, then run the notebook's first cell on them."""
    prepare_environment()
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port, page = free_ports(2)
    state = f"http://127.0.0.1:{page}/json/"

    def command(name: str, *arguments: str) -> list[str]:
        words = services[name]["command"].replace("${WORKER_MEMORY:-2g}", "2g").replace("7077", str(port))
        program, kind, *rest = shlex.split(words.replace("spark-master", "127.0.0.1"))
        assert program == "spark-class"
        return [spark_class, kind, *arguments, *rest]

    def workers() -> int:
        try:
            with urllib.request.urlopen(state, timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # not up yet
            return 0

    cell = CELLS[0].replace("spark://spark-master:7077", f"spark://127.0.0.1:{port}")
    cell = cell.replace('"notebook"', '"127.0.0.1"').replace("/tables/", f"{tmp_path}/")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    places = ("--port", str(port), "--webui-port", str(page))
    commands = [command("spark-master", *places), command("spark-worker-1", "--webui-port", "0")]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, words in enumerate(commands):
            with (tmp_path / f"{number}.log").open("w") as log:
                processes.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
        eventually("the worker is registered", lambda: workers() == 1, 120)
        program = f"{cell}\nspark.stop()"
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"\|\s*2\|robin\|", done.stdout)


@pytest.mark.s3
def test_the_cells_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tests.object_store import KEYS, REGION, client, make_bucket, running_server

    program = "\n".join(CELLS).replace('"spark://spark-master:7077"', '"local[2]"')
    program = re.sub(r'\n\s*\.config\("spark\.driver\.(?:host|bindAddress)", "[^"]+"\)', "", program)
    program = program.replace("/tables/", f"{tmp_path}/").replace("1_000_000", "2_000")
    begin = "from spark_lance.spark.java import prepare_environment\nprepare_environment()\n"
    with running_server() as server:
        s3 = client(server, "s3")
        make_bucket(s3, "lance")
        s3.close()
        environment = {
            **os.environ,
            **{name.upper(): key for name, key in KEYS.items()},
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": server.url,
            "AWS_ENDPOINT_URL_DYNAMODB": server.url,
            "PYTHONPATH": str(ROOT),
            "MPLBACKEND": "agg",
        }
        done = subprocess.run(
            [sys.executable, "-c", f"{begin}{program}\nspark.stop()"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^3 \d+$", done.stdout, re.MULTILINE)
