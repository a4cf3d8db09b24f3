"""The command line: one file per command, imported when that command is asked for."""
