"""The model zoo: one family a file, each a FAMILY object named by an entry point in setup.cfg."""
