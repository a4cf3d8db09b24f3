"""How long a report about a long run takes to write and to open, and how large it is. One line of JSON.

    python -m benchmarks.report_page --steps 100000

Run it from the root of a checkout. Opening is measured by Chromium itself, headless: from the begin of the navigation to its end, and
until something is painted; the start of the browser is not in it. On a busy machine look at the seconds of CPU. Where there is no Chromium, writing alone is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.browser import Browser, find_browser
from tests.long_run import build_long_run

_TIMES = """(() => {
  const [page] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [page.loadEventEnd, paint ? paint.startTime : null];
})()"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="rows of metrics.csv")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-report-") as place:
        layout = build_long_run(Path(place) / "run", arguments.steps)
        written, worked = [], []
        for _ in range(arguments.repeats):
            began, before = time.perf_counter(), os.times()
            command = [sys.executable, "-m", "paceline", "report", str(layout.root)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            written.append(time.perf_counter() - began)
            worked.append(after.children_user + after.children_system - before.children_user - before.children_system)
        opened, painted = [], []
        if find_browser() is not None:
            with Browser() as browser:
                for _ in range(arguments.repeats):
                    browser.open(layout.report_page)
                    loaded_ms, paint_ms = browser.value(f"new Promise(done => setTimeout(() => done({_TIMES}), 300))")
                    opened.append(loaded_ms / 1e3)
                    painted.append(paint_ms / 1e3 if paint_ms is not None else None)
        found = {
            "steps": arguments.steps,
            "metrics_bytes": layout.metrics.stat().st_size,
            "write_s": [round(value, 3) for value in written],
            "write_cpu_s": [round(value, 3) for value in worked],
            "open_s": [round(value, 3) for value in opened],
            "first_paint_s": [value and round(value, 3) for value in painted],
            "html_bytes": layout.report_page.stat().st_size,
            "markdown_bytes": layout.report_text.stat().st_size,
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
