"""What the coordinate median and the trimmed mean of a round cost, beside sorting every column with torch.

    python benchmarks/medians.py [--replies 100] [--parameters 159010] [--repeats 7]

The plain form is here: sort with the order, add up the weights in that order. Both take turns on one thread, after a
warm-up; the median of the repeats counts. Weights are alike (equal clients) or differ (clients of unlike sizes).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from turnout.parts.robust import coordinate_median, trimmed_mean

SHARE = 0.2


def plain_median(update_rP: Tensor, weight_r: Tensor) -> Tensor:
    value_rP, order_rP = update_rP.sort(0)
    reached_rP, half = weight_r[order_rP].cumsum(0), weight_r.sum() / 2
    low = (reached_rP >= half * (1 - 1e-9)).to(torch.int8).argmax(0, keepdim=True)
    high = (reached_rP > half * (1 + 1e-9)).to(torch.int8).argmax(0, keepdim=True)
    return ((value_rP.gather(0, low) + value_rP.gather(0, high)) / 2).squeeze(0)


def plain_trimmed(update_rP: Tensor, weight_r: Tensor) -> Tensor:
    value_rP, order_rP = update_rP.sort(0)
    own_rP, total = weight_r[order_rP], weight_r.sum()
    reached_rP = own_rP.cumsum(0)
    kept_rP = reached_rP.clamp(max=(1 - SHARE) * total) - (reached_rP - own_rP).clamp(min=SHARE * total)
    kept_rP = kept_rP.clamp(min=0)
    return ((kept_rP * value_rP).sum(0) / kept_rP.sum(0)).to(update_rP.dtype)


Form = Callable[[Tensor, Tensor], Tensor]
FORMS: dict[str, tuple[Form, Form]] = {
    "coordinate median": (plain_median, coordinate_median),
    "trimmed mean": (plain_trimmed, lambda update_rP, weight_r: trimmed_mean(update_rP, weight_r, SHARE)),
}


def seconds(form: Form, update_rP: Tensor, weight_r: Tensor) -> float:
    began = time.perf_counter()
    form(update_rP, weight_r)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=159_010)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    update_rP = torch.randn(given.replies, given.parameters, generator=generator)
    weights = {
        "alike": torch.full((given.replies,), 1 / given.replies, dtype=torch.float64),
        "differ": torch.rand(given.replies, generator=generator, dtype=torch.float64) + 0.1,
    }
    for kind, weight_r in weights.items():
        for name, (plain, ours) in FORMS.items():
            torch.testing.assert_close(ours(update_rP, weight_r), plain(update_rP, weight_r))
            times = [[seconds(form, update_rP, weight_r) for form in (plain, ours)] for _ in range(given.repeats)]
            ratio = median(slow / fast for slow, fast in times)
            print(f"{name}, weights {kind}: {ratio:.1f} times as fast as the plain form")


if __name__ == "__main__":
    main()
