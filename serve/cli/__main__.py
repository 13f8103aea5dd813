"""``python -m serve.cli``: the command line without an installed script."""

from serve.cli import main

main()
