"""Config, errors with hints, tables of names, atomic files, threads: the standard library alone."""
