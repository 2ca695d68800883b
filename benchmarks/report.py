"""How large a report of many clients and rounds is, how long it takes to be made, and to be opened in a browser.

    python benchmarks/report.py [--clients 10000] [--rounds 1000] [--asked 10000]

The records are made up: they have the columns of a run with friends and personal accuracy, and nothing is trained. It
takes two minutes, 600 MB of disk in a folder that is deleted, and for the last figure chromium and Playwright
(tests/support/browsing.py says how to get them).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from turnout.view.report.page import write_report

sys.path.append(str(Path(__file__).absolute().parent.parent / "tests" / "support"))

from browsing import chromium
from made_records import make_records


def opened(path: Path) -> float:
    """Seconds until a browser shows the page with the part that its script draws."""
    with chromium() as browser:
        page = browser.new_page()
        start = time.monotonic()
        page.goto(path.as_uri())
        page.wait_for_selector("svg[data-chart]")
        return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--asked", type=int, default=10_000, help="clients asked in every round")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        make_records(Path(temporary), given.clients, given.rounds, given.asked)
        start = time.process_time()
        path = write_report(temporary)
        print(f"{path.stat().st_size / 1e6:.2f} MB, made in {time.process_time() - start:.1f} s of CPU", flush=True)
        print(f"opened in {opened(path):.2f} s")


if __name__ == "__main__":
    main()
