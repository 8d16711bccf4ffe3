"""The base of the rooms: differences among releases of PySpark."""
