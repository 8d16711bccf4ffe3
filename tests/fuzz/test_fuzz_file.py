"""The fuzz target runs on its corpus: what it holds for a finding is none in whole and broken files."""

from __future__ import annotations

from pathlib import Path

from tests.file.test_corruption_campaign import files
from tests.fuzz.fuzz_file import try_bytes


def test_whole_and_broken_files(tmp_path: Path) -> None:
    list(files(tmp_path, "2.2", 12))
    seeds = sorted(tmp_path.glob("*.lance"))
    assert seeds
    for seed in seeds:
        data = seed.read_bytes()
        for content in (data, data[:-1], b"", bytes(reversed(data))):
            for way in range(4):
                try_bytes(bytes([way]) + content)
