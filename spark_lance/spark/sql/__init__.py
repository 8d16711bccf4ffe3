"""SQL by table name: a catalog of Lance tables, statements that change rows, procedures; see docs/sql.md."""
