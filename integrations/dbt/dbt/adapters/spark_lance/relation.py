"""Names of tables and views: catalog, schema, identifier, in backquotes."""

from __future__ import annotations

from dataclasses import dataclass, field

from dbt.adapters.base.relation import BaseRelation, Policy
from dbt.adapters.spark.relation import SparkRelation

__all__ = ["LanceRelation"]


@dataclass(frozen=True, eq=False, repr=False)
class LanceRelation(SparkRelation):
    """A table or view; its database is the catalog."""

    quote_policy: Policy = field(default_factory=lambda: Policy(database=True, schema=True, identifier=True))
    include_policy: Policy = field(
        default_factory=lambda: Policy(database=True, schema=True, identifier=True)
    )
    quote_character: str = "`"

    def __post_init__(self) -> None:
        """Accept a database, other than the base class."""

    def render(self) -> str:
        """Return the name in SQL."""
        return str(BaseRelation.render(self))
