"""A page opened in headless Chromium, and measured there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

WATCH = """<script>
const failures = [];
addEventListener("error", e => failures.push(String(e.message || e.target.outerHTML)), true);
console.error = (...words) => failures.push(words.join(" "));
</script>"""
MEASURE = """<script>
addEventListener("load", async () => {
  const images = [...document.images];
  for (const image of images) {
    image.loading = "eager";
    await image.decode().catch(e => failures.push(image.alt + ": " + e));
  }
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const root = document.documentElement, tables = [...document.querySelectorAll("table")];
  const colour = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  const told = document.createElement("pre");
  told.id = "measured";
  told.textContent = JSON.stringify({
    failures, scroll: root.scrollWidth, client: root.clientWidth, images: images.length,
    tables: tables.length,
    empty_tables: tables.filter(t => ![...t.querySelectorAll("td")].some(d => d.innerText)).length,
    brightness: colour.reduce((a, b) => a + b, 0) / 3,
  });
  parent.document.body.append(told);
});
</script>"""


@dataclass(frozen=True)
class Measured:
    """What the browser found, everything unfolded."""

    failures: list[str]
    scroll: int
    client: int
    images: int
    tables: int
    empty_tables: int
    brightness: float


def opened(page: str, folder: Path, *, width: int, dark: bool = False) -> Measured:
    """Opens a page in a frame of some width, by day or by night."""
    path = folder / f"page-{dark}.html"
    watched = page.replace("<head>", "<head>" + WATCH, 1).replace("</body>", MEASURE + "</body>", 1)
    # A window has at least 500 pixels; a frame in it may be as narrow as a phone.
    style = f"border: 0; width: {width}px; height: 900px"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><iframe style="{style}" '
        f'srcdoc="{escape(watched)}"></iframe>',
        encoding="utf-8",
    )
    command = [
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--window-size=1000,1000",
        "--virtual-time-budget=20000",
        "--dump-dom",
        path.as_uri(),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return Measured(**json.loads(unescape(found[1])))
