"""`python -m elman.cli` is the same as `elman`."""

from elman.__main__ import main

if __name__ == "__main__":
    main()
