"""The compose file holds together, and the cells of its notebook run, against servers in a test process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
NOTEBOOK = json.loads((ROOT / "docker" / "notebook.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(COMPOSE)
    assert set(found) == {"name", "x-spark", "services", "volumes"}
    services: dict[str, Any] = found["services"]
    for service in services.values():
        used = {str(volume).partition(":")[0] for volume in service.get("volumes", ())}
        assert used <= set(found["volumes"])
    return services


def test_services_wait_for_services_that_say_when_they_are_ready(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services, name
            if wanted["condition"] == "service_healthy":
                assert services[other]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "ports are open to this machine only"
        image = service.get("image", "")
        assert image == "spark-lance:local" or re.search(r":.*\d", image), "images are pinned"
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
    for number, cell in enumerate(CELLS):
        compile(cell, f"cell {number}", "exec")


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
