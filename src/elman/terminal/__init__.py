"""Printing, options and progress of commands."""
