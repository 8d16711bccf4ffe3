"""Errors of commits."""

from __future__ import annotations

from spark_lance.errors import CommitError as CommitConflictError

__all__ = ["CommitConflictError"]
