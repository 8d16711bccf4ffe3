"""`python -m spark_lance`: looking at tables, checking them, keeping them small; without Spark."""
