"""Some mutations with a fixed seed, and what the fuzzer does when it finds something."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_lance.proto import table_pb2
from tests.conftest import ROOT
from tests.fuzz.mutations import mutate_bytes, mutate_json_object, mutate_message
from tests.fuzz.run import Report, fuzz_target
from tests.fuzz.targets import TARGETS

QUICK = "deletion file"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "template"
    TARGETS[QUICK].make(path)
    return path


def check(name: str, count: int, folder: Path, template: Path | None = None) -> Report:
    report = fuzz_target(name, 1, 600, count, folder, template)
    assert not report.findings
    assert report.counts["ok"] + report.counts["typed error"] == count
    assert report.counts["typed error"] > count / 20
    return report


def test_some_mutations(tmp_path: Path, template: Path) -> None:
    check(QUICK, 12, tmp_path, template)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutations(name: str, tmp_path: Path) -> None:
    check(name, 250, tmp_path)


def test_mutations_repeat() -> None:
    message = table_pb2.Manifest(version=3, config={"a": "b"}, fragments=[table_pb2.DataFragment(id=1)])
    results = set()
    for number in range(200):
        first, second = table_pb2.Manifest(), table_pb2.Manifest()
        for copy in (first, second):
            copy.CopyFrom(message)
            mutate_message(copy, random.Random(number))
        assert first == second
        results.add(first.SerializeToString(deterministic=True))
        for mutation in (mutate_bytes, mutate_json_object):
            data = b'{"version": 3, "path": ["a", {"b": 1.5}]}'
            assert mutation(data, random.Random(number)) == mutation(data, random.Random(number))
    assert len(results) > 100


def test_a_finding_can_be_tried_again(tmp_path: Path, template: Path) -> None:
    """A table whose mutation is harmless, because the fuzzer itself finds none."""
    shutil.copytree(template, tmp_path / "template")
    file = next(template.glob("_deletions/*.bin")).relative_to(template)
    note = {"target": QUICK, "seed": 1, "number": 0, "file": str(file)}
    (tmp_path / "at").write_text(json.dumps(note))
    (tmp_path / "mutated").write_bytes(b"no bitmap")
    command = [sys.executable, "-m", "tests.fuzz.run", "--replay", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == {"number": 0, "outcome": "typed error", "detail": "FormatError"}
