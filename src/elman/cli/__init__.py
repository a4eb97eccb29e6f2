"""The command line, one file per command.

`main.py` collects the commands and turns errors into messages and exit codes. A command file
imports nothing heavy at its top, which keeps `elman --help` fast.
"""
