"""Exporters: one family's graph a file, each an EXPORTER object named by an entry point in setup.cfg."""
