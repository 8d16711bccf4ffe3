"""Checks that what would be published works: `make release-check`.

Wheel and sdist are built from a clean copy of the sources, looked into, installed into new environments of
the oldest and the newest Python, and used there: the command line, a table without Spark, the demo on real
data. Prints a line for each thing that was checked; exit code 1 if one failed or an interpreter is missing.
`--keep FOLDER` keeps what passed, which is what to publish.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEEL_HAS = (
    "pyspark_lance.py",
    "spark_lance/py.typed",
    "spark_lance/proto/table_pb2.py",
    "spark_lance/proto/table_pb2.pyi",
    "spark_lance/spark/jvm/org/lance/spark/scan/LanceScan.java",
)
SDIST_HAS = ("LICENSE", "README.md", "pyproject.toml", *WHEEL_HAS)
TRY = """
import sys, pyarrow as pa, spark_lance
assert "site-packages" in spark_lance.__file__, spark_lance.__file__
ds = spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), sys.argv[1]).delete("id = 2")
assert ds.to_table().to_pydict() == {"id": [1, 3]}
"""


class CheckError(Exception):
    """Something is not ready to be published; the message says what."""


def version() -> str:
    """Return the version that the sources have."""
    line = re.search(r'^RELEASE = "([^"]+)"', (ROOT / "spark_lance" / "release.py").read_text(), re.MULTILINE)
    if line is None:
        raise CheckError("spark_lance/release.py has no RELEASE")
    return line[1]


def check_words() -> Iterator[str]:
    """Check what the sources say of the release."""
    number = version()
    if (
        f"({number})" not in (changes := (ROOT / "CHANGELOG.md").read_text())
        and f"## {number}" not in changes
    ):
        raise CheckError(f"CHANGELOG.md has no heading for {number}")
    yield f"CHANGELOG.md tells of {number}"


def built(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist of the committed sources; return both."""
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(source)], check=True)
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"building failed: {done.stderr.strip()[-500:]}")
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def check_archives(wheel: Path, sdist: Path) -> Iterator[str]:
    """Check the contents of the archives, and report their sizes."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    if missing := [name for name in WHEEL_HAS if name not in names]:
        raise CheckError(f"the wheel lacks {', '.join(missing)}")
    others = {name.partition("/")[0] for name in names} - {"spark_lance", "pyspark_lance.py"}
    if more := [name for name in others if not name.endswith(".dist-info")]:
        raise CheckError(f"the wheel holds more than the package: {', '.join(more)}")
    for path in (wheel, sdist):
        yield f"{path.name}: {path.stat().st_size:,} bytes"
    with tarfile.open(sdist) as archive:
        files = [name.partition("/")[2] for name in archive.getnames()]
    if missing := [name for name in SDIST_HAS if name not in files]:
        raise CheckError(f"the sdist lacks {', '.join(missing)}")
    for line in (
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        "Description-Content-Type: text/markdown",
    ):
        if line not in metadata:
            raise CheckError(f"the wheel's metadata lacks {line!r}")
    yield "wheel and sdist hold what they should, and no more"


def check_install(wheel: Path, sdist: Path, python: str, folder: Path, demo: bool) -> Iterator[str]:
    """Install the wheel into a new environment of an interpreter, and the sdist in its place; use both."""
    place = folder / Path(python).name
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    program = place / "bin" / "python"
    install = [str(program), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    extra = "[demo]" if demo else ""
    _run([*install, "-c", str(ROOT / "constraints.txt"), f"spark-lance{extra} @ {wheel.as_uri()}"], folder)
    yield from _check_use(wheel, program, place)
    if demo:
        shutil.copytree(ROOT / "examples", place / "examples")
        _run([str(program), str(place / "examples" / "quickstart.py")], place)
        yield f"the demo runs with {python} from the installed wheel"
    # Only the package itself: its dependencies, Spark among them, are those that the wheel brought.
    _run([*install, "--no-deps", "--force-reinstall", str(sdist)], folder)
    yield from _check_use(sdist, program, place)


def _check_use(archive: Path, program: Path, place: Path) -> Iterator[str]:
    """Use what was installed from an archive: the command line, and a table without Spark."""
    table = str(place / archive.suffix.strip("."))
    said = _run([str(place / "bin" / "spark-lance"), "--version"], place)
    if said.strip() != f"spark-lance {version()}":
        raise CheckError(f"{program}: spark-lance --version says {said.strip()!r}")
    _run([str(program), "-c", TRY, table], place)
    _run([str(place / "bin" / "spark-lance"), "verify", table], place)
    yield f"{archive.name} works with {place.name}"


def _run(command: Sequence[str], folder: Path) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{' '.join(command[:4])} ...: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Check a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python", action="append", help="interpreters; python3.10 and python3.13 by default"
    )
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which downloads Spark")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where to put the wheel and sdist that passed"
    )
    arguments = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for line in check_words():
                print("ok  ", line)
            wheel, sdist = built(folder)
            for line in check_archives(wheel, sdist):
                print("ok  ", line)
            for wanted in arguments.python or ["python3.10", "python3.13"]:
                python = shutil.which(wanted)
                if python is None:
                    raise CheckError(f"there is no {wanted}: name others with --python")
                for line in check_install(wheel, sdist, python, folder, not arguments.no_demo):
                    print("ok  ", line, flush=True)
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                for path in (wheel, sdist):
                    shutil.copy(path, arguments.keep)
    except (CheckError, subprocess.CalledProcessError) as error:
        print("FAIL", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
