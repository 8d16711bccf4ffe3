"""The PySpark data source `lance`."""
