"""Installs each package of a folder in an empty environment and trains with it for a second.

python tools/smoke.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAINS = """
import torch, localsgd
model = torch.nn.Linear(2, 1)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = localsgd.LocalSGD(inner, model, local_steps=2)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
optimizer.finish()
print("localsgd", localsgd.__version__, "from", localsgd.__file__)
"""
"""What the library needs alone."""


def smoke(package: Path) -> None:
    """Fails where the package, alone with what it asks for, can't train or has no command line."""
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["-c", ROOT / "constraints.txt"]
        _run(*pip, package, cwd=place)
        _run(python, "-c", TRAINS, cwd=place)
        _run(*pip, f"{package}[cli]", cwd=place)
        out = ["--quiet", "--out", place / "run"]
        _run(place / "venv" / "bin" / "localsgd", "run", "--epochs=1", *out, cwd=place)
        _run(place / "venv" / "bin" / "localsgd", "show", place / "run", cwd=place)


def _run(*command: object, cwd: Path) -> None:
    subprocess.run([str(word) for word in command], cwd=cwd, check=True, timeout=900)


if __name__ == "__main__":
    for found in sorted(Path(sys.argv[1]).resolve().glob("localsgd-*")):
        print(f"{found.name}: installed in an empty environment")
        smoke(found)
