"""`python -m elman` is the same as `elman`."""

from elman.cli.main import main

if __name__ == "__main__":
    main()
