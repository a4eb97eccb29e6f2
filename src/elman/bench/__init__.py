"""Side-by-side measurements: `elman bench`."""
