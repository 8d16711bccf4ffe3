"""Set-up once per session or process: Java classes, settings, workers."""
