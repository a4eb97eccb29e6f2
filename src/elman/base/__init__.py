"""Errors with hints, configuration, tables of names, atomic files: the standard library alone."""
