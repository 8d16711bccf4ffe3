"""Java sources of the package with other text in some of them, which then do not fit a release of Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from spark_lance.spark.driver import java_classes


def changed_sources(folder: Path, texts: Mapping[str, str]) -> Path:
    """Copy the package's Java sources into a folder, with other texts for some classes.

    Args:
        folder: gets a folder `jvm`, which is returned.
        texts: sources by the names of their classes, with packages.
    """
    result = folder / "jvm"
    shutil.copytree(java_classes.FOLDER, result)
    for name, text in texts.items():
        (result / f"{name.replace('.', '/')}.java").write_text(text)
    return result
