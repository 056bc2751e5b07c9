"""Why there is no laboratory here, in one line."""

from __future__ import annotations

import os
import shutil
import sys


class Refused(RuntimeError):
    """The laboratory can't be built on this machine, or not as asked; the text is one line."""


def check_machine() -> None:
    """Refuses what can be seen without trying: another system, no root, no iproute2."""
    if not sys.platform.startswith("linux"):
        raise Refused(
            f"the laboratory needs Linux's network namespaces, and this is {sys.platform}"
        )
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise Refused(
            f"the laboratory needs {' and '.join(missing)} of iproute2, which is not installed; "
            "on Debian: apt-get install iproute2"
        )
    if os.geteuid() != 0:
        raise Refused(
            "the laboratory makes network namespaces, which needs root; start it with sudo, or in "
            "a virtual machine"
        )
