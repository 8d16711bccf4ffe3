"""Java sources of the package with other text in some of them, which then do not fit a release of Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from spark_lance.spark.session import java_classes


def changed_sources(folder: Path, texts: Mapping[str, str]) -> Path:
    """Return a folder, in the given one, with the package's Java sources and other texts in place of some."""
    made = folder / "jvm"
    shutil.copytree(java_classes.FOLDER, made)
    for name, text in texts.items():
        (made / name).write_text(text)
    return made
