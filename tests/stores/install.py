"""Installs the servers of object stores that the tests run, each once, at a pinned version.

    python tests/stores/install.py

They come from the registries of their languages, by the languages' own tools, into a cache folder:
`$XDG_CACHE_HOME/spark-lance-test-stores/`, by default below `~/.cache`; `SPARK_LANCE_TEST_STORES` names
another one. Each has a folder of its own, named after its version, that appears when it is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["SERVERS", "MissingToolError", "Package", "folder", "install", "main"]

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>stores</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.amazonaws</groupId><artifactId>DynamoDBLocal</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# Building all servers from source takes two minutes on two cores, more on a busy machine.
_SECONDS = 1800


class MissingToolError(RuntimeError):
    """A program that installs or runs a server is not on this machine."""


@dataclass(frozen=True)
class Package:
    """A server and how it gets here.

    Attributes:
        version: of the server.
        tools: programs that install or run it.
        fetch: installs it into a folder.
        program: what is there when it is installed, relative to that folder.
    """

    version: str
    tools: tuple[str, ...]
    fetch: Callable[[Path, str], None]
    program: str


def _go(module: str) -> Callable[[Path, str], None]:
    def fetch(target: Path, version: str) -> None:
        _run(["go", "install", f"{module}@{version}"], {"GOBIN": str(target)})

    return fetch


def _npm(package: str) -> Callable[[Path, str], None]:
    def fetch(target: Path, version: str) -> None:
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _run(["npm", "install", *quiet, "--prefix", str(target), f"{package}@{version}"], {})

    return fetch


def _dynamodb(target: Path, version: str) -> None:
    pom = target / "pom.xml"
    pom.write_text(_POM.format(version))
    _run(
        [
            *("mvn", "-q", "-B", "-f", str(pom), _COPY),
            *("-DincludeScope=runtime", f"-DoutputDirectory={target / 'lib'}"),
        ],
        {},
    )


# What the tests call a server -> where it comes from.
SERVERS: Mapping[str, Package] = MappingProxyType(
    {
        "versitygw": Package(
            "v1.8.0", ("go",), _go("github.com/versity/versitygw/cmd/versitygw"), "versitygw"
        ),
        "fake-gcs-server": Package(
            "v1.56.1", ("go",), _go("github.com/fsouza/fake-gcs-server"), "fake-gcs-server"
        ),
        "azurite": Package("3.37.0", ("node", "npm"), _npm("azurite"), "node_modules/.bin/azurite-blob"),
        "dynamodb-local": Package("2.6.1", ("java", "mvn"), _dynamodb, "lib"),
    }
)


def folder(name: str) -> Path:
    """Return where a server is, or would be, installed."""
    given = os.environ.get("SPARK_LANCE_TEST_STORES")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = Path(given) if given else cache / "spark-lance-test-stores"
    return root / f"{name}-{SERVERS[name].version}"


def install(name: str) -> Path:
    """Install a server if it is not there, and return its folder.

    Raises:
        MissingToolError: a program that this takes is not on the PATH.
        RuntimeError: the installation failed; the message holds what the tool said.
    """
    package, target = SERVERS[name], folder(name)
    missing = [tool for tool in package.tools if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"{name} needs {' and '.join(missing)} on the PATH")
    if (target / package.program).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as staging:
        staged = Path(staging, "new")
        staged.mkdir()
        package.fetch(staged, package.version)
        if not (staged / package.program).exists():
            raise RuntimeError(f"{name} {package.version} was installed without {package.program}")
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
    return target


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{tail}")


def main() -> int:
    """Install every server; return the exit status."""
    lacking = []
    for name, package in SERVERS.items():
        there = (folder(name) / package.program).exists()
        sys.stderr.write("" if there else f"Installing {name} {package.version} into {folder(name)}\n")
        try:
            install(name)
        except MissingToolError as error:
            lacking.append(str(error))
        except RuntimeError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    if lacking:
        sys.stderr.write(f"make test-stores cannot run: {'; '.join(lacking)}.\n")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
