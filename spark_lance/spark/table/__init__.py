"""Tables as objects of Spark programs: what Spark's reading and writing do not offer."""
