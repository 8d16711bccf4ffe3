"""Names that the command line has throughout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TypeAlias

# The installed program, and the variable with which a shell asks it for completions.
PROGRAM, COMPLETE = "spark-lance", "_SPARK_LANCE_COMPLETE"

# The arguments of a command: an attribute for each of its parameters.
Arguments: TypeAlias = SimpleNamespace
