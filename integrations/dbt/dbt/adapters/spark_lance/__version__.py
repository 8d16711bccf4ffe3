"""The adapter's version: the release of dbt-spark that it extends."""

version = "1.11.0"
