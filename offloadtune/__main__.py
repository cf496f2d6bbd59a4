"""`python -m offloadtune`, and the `offloadtune` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from offloadtune.cli import main as run  # noqa: PLC0415 - importing this module must stay free

    run()


if __name__ == "__main__":
    main()
