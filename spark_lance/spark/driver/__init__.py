"""Sessions, jobs and checks: what only the driver runs."""
