"""The commands of `elman bench`, by what they measure."""
