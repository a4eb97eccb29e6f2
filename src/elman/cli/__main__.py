"""The program `elman`, also as `python -m elman.cli`."""

from elman.base.interrupts import guarded
from elman.base.starting import collect_rarely, with_room


@guarded
@with_room
def main() -> None:
    collect_rarely()

    from elman.cli.main import main

    main()


if __name__ == "__main__":
    main()
