"""The command line: `localsgd --help` names its commands."""

from localsgd.cli.main import main

__all__ = ["main"]
