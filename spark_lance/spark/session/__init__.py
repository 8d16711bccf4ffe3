"""Set-up once per session or process: the optimizer rule, workers."""
