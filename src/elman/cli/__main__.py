"""The program `elman`, also as `python -m elman.cli`."""

import gc

from elman.base.interrupts import guarded

NEW_OBJECTS = 10_000
"""After how many new objects garbage is searched for. Importing makes hundreds of thousands that
stay; with CPython's 700, searching them is a twelfth of the start-up. With 100,000 it is no
shorter, and models in reference cycles would stay in memory."""


@guarded
def main() -> None:
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])

    from elman.cli.main import main

    main()


if __name__ == "__main__":
    main()
