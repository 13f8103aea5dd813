"""The command ``shortlist``: every job of the project, one step at a time or all in a demo."""

from __future__ import annotations


def main() -> None:
    """Run the command line; what the installed script ``shortlist`` calls."""
    from serve.cli.app import run

    run()
