"""The command line: `localsgd --help` names its commands."""

from __future__ import annotations

import sys

try:
    from localsgd.cli.main import main
except ModuleNotFoundError as missing:
    if (missing.name or "localsgd").partition(".")[0] == "localsgd":
        raise
    _name = missing.name

    def main(arguments: object = None) -> int:
        """Says what is not installed."""
        print(
            f"localsgd: the command line needs {_name}, which is not installed: "
            "pip install 'localsgd[cli]'",
            file=sys.stderr,
        )
        return 2


__all__ = ["main"]
