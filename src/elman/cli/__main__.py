"""The program `elman`, also as `python -m elman.cli`."""

from elman.base.interrupts import guarded


@guarded
def main() -> None:
    from elman.cli.main import main

    main()


if __name__ == "__main__":
    main()
