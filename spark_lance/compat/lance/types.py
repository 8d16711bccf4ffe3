"""Types of arguments."""

from __future__ import annotations

from typing import Any

__all__ = ["ReaderLike"]

ReaderLike = Any
