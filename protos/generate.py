"""Generate the protobuf modules of ``spark_lance/proto`` from the ``.proto`` files next to this script.

The code is made with one pinned, old protoc (grpcio-tools 1.62.3), because generated code runs on
every protobuf runtime that is newer than its generator. If the running interpreter does not have
that release, a throw-away virtual environment is made for it (needs CPython 3.10 to 3.12 and a
package index).

Imports are rewritten from ``x.proto`` to ``spark_lance/proto/x.proto`` first, so that the modules
import each other through the package and register their files under unambiguous names.

Usage: ``python protos/generate.py`` writes the modules; with ``--check`` nothing is written and the
exit status is 1 if the checked-in modules are not what the ``.proto`` files give.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

GRPC_TOOLS_VERSION = "1.62.3"
PACKAGE_DIR = "spark_lance/proto"
SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / PACKAGE_DIR
LOCAL_IMPORT = re.compile(r'^import "(\w+\.proto)";$', re.MULTILINE)


def has_pinned_tools() -> bool:
    """Return whether the running interpreter can run the pinned protoc."""
    try:
        installed = importlib.metadata.version("grpcio-tools")
        importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return False
    return installed == GRPC_TOOLS_VERSION


def protoc_python(scratch: Path) -> Path:
    """Return an interpreter with the pinned protoc, making an environment in ``scratch`` if needed."""
    if has_pinned_tools():
        return Path(sys.executable)
    environment = scratch / "venv"
    venv.create(environment, with_pip=True)
    bin_dir = "Scripts" if sys.platform == "win32" else "bin"
    python = environment / bin_dir / "python"
    # grpc_tools imports pkg_resources, which left setuptools in release 81.
    requirements = [f"grpcio-tools=={GRPC_TOOLS_VERSION}", "setuptools<81"]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements], check=True)
    return python


def generate(python: Path, scratch: Path) -> dict[str, bytes]:
    """Run protoc over a staged copy of the sources; return file name -> content."""
    staging = scratch / "staging"
    package = staging / PACKAGE_DIR
    package.mkdir(parents=True)
    names = sorted(path.name for path in SOURCE.glob("*.proto"))
    for name in names:
        text = (SOURCE / name).read_text(encoding="utf-8")
        text = LOCAL_IMPORT.sub(rf'import "{PACKAGE_DIR}/\1";', text)
        (package / name).write_text(text, encoding="utf-8")
    output = scratch / "output"
    output.mkdir()
    command = [str(python), "-m", "grpc_tools.protoc", f"-I{staging}"]
    command += [f"--python_out={output}", f"--pyi_out={output}"]
    command += [f"{PACKAGE_DIR}/{name}" for name in names]
    subprocess.run(command, check=True, cwd=staging)
    return {path.name: path.read_bytes() for path in sorted((output / PACKAGE_DIR).iterdir())}


def checked_in() -> dict[str, bytes]:
    """Return file name -> content of what is generated in the package."""
    return {path.name: path.read_bytes() for path in sorted(TARGET.glob("*_pb2.py*"))}


def differences(expected: dict[str, bytes], present: dict[str, bytes]) -> list[str]:
    """Return one line per file that is missing, left over or different."""
    lines = []
    for name in sorted(expected.keys() | present.keys()):
        if name not in present:
            lines.append(f"{name}: missing")
        elif name not in expected:
            lines.append(f"{name}: has no .proto file")
        elif expected[name] != present[name]:
            before, after = (files[name].decode("latin-1").splitlines() for files in (present, expected))
            diff = difflib.unified_diff(before, after, lineterm="", n=0)
            changed = [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
            added = sum(line.startswith("+") for line in changed)
            lines.append(f"{name}: differs (+{added} -{len(changed) - added} lines)")
    return lines


def main() -> int:
    """Write or check the modules; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate spark_lance/proto from the .proto files.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on any difference")
    check_only = parser.parse_args().check
    with tempfile.TemporaryDirectory(prefix="spark-lance-proto-") as folder:
        scratch = Path(folder)
        expected = generate(protoc_python(scratch), scratch)
    if check_only:
        problems = differences(expected, checked_in())
        for problem in problems:
            sys.stdout.write(problem + "\n")
        return 1 if problems else 0
    for stale in checked_in().keys() - expected.keys():
        (TARGET / stale).unlink()
    for name, content in expected.items():
        (TARGET / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
