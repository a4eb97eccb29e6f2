"""`python -m elman` is the same as `elman`."""

from elman.cli.__main__ import main

if __name__ == "__main__":
    main()
