"""Hold the version: imports nothing, so that setup and `--version` read it cheaply."""

VERSION = "0.1.0"
