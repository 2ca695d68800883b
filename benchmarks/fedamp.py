"""What FedAMP's server half costs: mixes for a cohort of 100 among many known clients. Seconds of one core."""

from __future__ import annotations

import time

import torch

import turnout as to
from turnout.parts.updates import Updates
from turnout.types import Turnout

COHORT = 100


def main() -> None:
    torch.set_num_threads(1)
    print("clients known | parameters | GB kept | s a round")
    for known, width in ((1_000, 10_000), (10_000, 10_000), (1_000, 100_000)):
        mixing, shared_P = to.mixing.FedAMP(), torch.zeros(width)
        everybody = torch.arange(known)
        state = mixing.begin(known, width)
        for client_R in everybody.split(1_000):
            update_RP = torch.randn(len(client_R), width)
            all_C = torch.ones(len(client_R), dtype=torch.float64)
            turnout = Turnout(client_R, all_C, 1.0, all_C, all_C)
            state = mixing.observe(
                state, Updates(0, 0, client_R, update_RP, shared_P, turnout, torch.arange(len(client_R)))
            )
        start = time.process_time()
        mixing.starts(state, everybody[:COHORT], shared_P)
        print(f"{known:,} | {width:,} | {mixing.memory(known, width) / 1e9:.2f} | {time.process_time() - start:.2f}")


if __name__ == "__main__":
    main()
