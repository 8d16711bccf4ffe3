"""`python -m spark_lance`: a CLI to inspect, check and maintain tables, without Spark."""
