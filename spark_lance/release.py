"""The release of this package."""

from __future__ import annotations

__all__ = ["RELEASE"]

RELEASE = "0.1.0"
