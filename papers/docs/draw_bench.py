"""Draw bench-heat-map.svg and bench-ranks.svg from the record of the benchmark.

    python papers/docs/draw_bench.py

Prints the mean ranks, and what each method gains on FedAvg by kind of turnout (means over data sets).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from turnout_papers.bench.pictures import Standings, critical_difference, heat_map
from turnout_papers.studies.bench import METHODS

HERE = Path(__file__).parent


def read() -> Standings:
    """The worlds of the record, means over three seeds."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in json.loads((HERE / "studies" / "paper" / "bench.json").read_text("utf-8"))["rows"]:
        data, turnout = row["case"].split(", ")
        value = -np.inf if row["diverged"] else float(row["ours"])
        found.setdefault((data, turnout), {})[row["metric"]] = value
    return Standings(tuple(METHODS), list(found), np.array([[own[m] for own in found.values()] for m in METHODS]))


def main() -> None:
    standings = read()
    (HERE / "bench-heat-map.svg").write_text(heat_map(standings, "Points behind the best method"), "utf-8")
    (HERE / "bench-ranks.svg").write_text(critical_difference(standings, "Mean ranks"), "utf-8")
    print(f"{len(standings.worlds)} worlds, critical difference {standings.critical:.1f}")
    turnouts = list(dict.fromkeys(turnout for _, turnout in standings.worlds))
    data = list(dict.fromkeys(name for name, _ in standings.worlds))
    print("method, mean rank, gain on FedAvg under:", *turnouts, sep=" | ")
    gain_MN = standings.value_MN - standings.value_MN[standings.methods.index("FedAvg")]
    kind_N, data_N = (np.array(names) for names in zip(*((t, d) for d, t in standings.worlds), strict=True))
    for i in standings.mean_rank_M.argsort():
        gains = (f"{gain_MN[i, kind_N == turnout].mean():+.1f}" for turnout in turnouts)
        print(standings.methods[i], f"{standings.mean_rank_M[i]:.1f}", *gains, sep=" | ")
    for name in data:
        own_MN = standings.value_MN[:, data_N == name]
        spans = own_MN.max(0) - own_MN.min(0)
        complete = gain_MN[standings.methods.index("scheme A"), (data_N == name) & (kind_N == "deadline")]
        print(name, f"best to worst {spans.min():.1f} to {spans.max():.1f}; scheme A, deadline {complete.item():+.1f}")


if __name__ == "__main__":
    main()
