"""The command line, one file per command.

`main.py` gathers the commands and turns errors into sentences and exit codes; `console.py` has the
manners that all commands share. A command file imports nothing heavy at its top, so that
`elman --help` appears at once.
"""
