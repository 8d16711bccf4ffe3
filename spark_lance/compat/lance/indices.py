"""Kinds of indices and their options as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["IndexConfig", "IndexFileVersion"]


class IndexFileVersion(str, enum.Enum):
    """The format of the files of vector indices."""

    LEGACY = "Legacy"
    V3 = "V3"


@dataclass(frozen=True)
class IndexConfig:
    """A kind of index, and its options.

    Attributes:
        index_type: such as "btree".
        parameters: its options.
    """

    index_type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
