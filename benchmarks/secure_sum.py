"""What a secure sum costs: seconds of a device and of the server, and bytes, by the number of devices.

    python benchmarks/secure_sum.py --clients 20 100 --entries 100000

All stages run in this process, one device after another. A tenth of the devices drops out after sharing its secrets,
and another tenth after sending its vector. `noise seconds` is what a device needs more where sums are private.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict

import torch

from turnout.parts.privacy.discrete import PrivateSum
from turnout.parts.secure import SecureSum
from turnout.runtimes.secure_sum import SecureClient, SecureServer, bytes_up, whole_numbers


def measure(clients: int, entries: int, rule: SecureSum) -> dict[str, float]:
    """Seconds of the median device and of the server in one round, and bytes that a device sends."""
    generator = torch.Generator().manual_seed(clients)
    whole_CV = rule.encode(torch.randn(clients, entries, generator=generator), clients)
    devices = {c: SecureClient(c, least=rule.least) for c in range(clients)}
    server, spent = SecureServer(rule, clients), defaultdict(float)
    tenth, began = clients // 10, 0.0

    def timed(device: int, work):
        start = time.perf_counter()
        result = work()
        spent[device] += time.perf_counter() - start
        return result

    announced = {c: timed(c, device.announce) for c, device in devices.items()}
    began = time.perf_counter()
    server.announce(announced)
    of_server = time.perf_counter() - began
    for c, device in devices.items():
        server.boxes[c] = timed(c, lambda c=c, d=device: d.share(server.keys_for(c), server.threshold))
    staying = range(tenth, clients)
    masked = {c: timed(c, lambda c=c: devices[c].mask(whole_CV[c], server.boxes_for(c))) for c in staying}
    revealed = {c: timed(c, lambda c=c: devices[c].reveal(masked, len(masked))) for c in range(2 * tenth, clients)}
    began = time.perf_counter()
    total_V = server.total(masked, revealed)
    of_server += time.perf_counter() - began
    assert torch.equal(total_V, whole_CV[tenth:].sum(0, dtype=torch.int32))
    private, noising = PrivateSum(least=clients // 2), list[float]()
    for key in range(6):  # the first makes the tables
        began = time.perf_counter()
        whole_numbers(private, torch.randn(1, entries), clients, [bytes([key]) * 32])
        noising.append(time.perf_counter() - began)
    neighbours, threshold = rule.neighbourhood(clients)
    device = statistics.median(spent[c] for c in range(2 * tenth, clients))
    sent = bytes_up(neighbours, entries)
    return {
        "devices": clients, "neighbours": neighbours, "threshold": threshold, "device seconds": device,
        "noise seconds": statistics.median(noising[1:]), "server seconds": of_server, "bytes": sent,
        "times plain": sent / (4 * entries),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--entries", type=int, default=100_000)
    asked = parser.parse_args()
    for clients in asked.clients:
        found = measure(clients, asked.entries, SecureSum())
        print(", ".join(f"{name} {value:.4g}" for name, value in found.items()))


if __name__ == "__main__":
    main()
