"""The command line: `localsgd run`, `compare`, `resume`, `show`, `landscape`, `tasks`."""

from localsgd.cli.main import main

__all__ = ["main"]
