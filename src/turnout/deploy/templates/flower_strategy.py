"""A strategy for Flower, written by `turnout advise --export flower`; settings.toml beside it has its settings.

It needs flwr and numpy, on the server alone; devices run your own ClientApp, without Turnout. In your ServerApp:

    from strategy import AdvisedStrategy

    @app.main()
    def main(grid, context):
        strategy = AdvisedStrategy.from_file()
        result = strategy.run(grid, initial_arrays)

A device trains as message.content["config"] says ("lr", "batch-size", "local-epochs" or "local-steps", and
"proximal-mu", "momentum", "weight-decay" if they are not 0), and replies with its arrays and a MetricRecord of

    num-examples  how many it trained on
    work          the share of the work that it finished, 0 to 1 (1 if it is missing)
    steps         how many mini-batches these were (needed for FedNova)
    node          a number of its own, if it has one, so that it is known again after it has reconnected
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

STATES = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm: they are averaged, never scaled


class Reply(NamedTuple):
    """What a device sent: its weights in one row, and what it reports of its work."""

    node: int
    weights: np.ndarray
    examples: float
    work: float = 1.0
    steps: float = 1.0


class ReplyRule:
    """The method: from the replies of a round to the next weights. It remembers sizes, last updates and similarities.

    weighting     "fedavg", "A" (complete work alone), "B" (as it is), "C" (scaled up to all of the work), "fednova"
    substitution  "none", "friends" (a missing device's share goes to the most similar one present), or "stale" (it
                  takes part with its last update)
    """

    def __init__(self, weighting: str = "fedavg", substitution: str = "none") -> None:
        self.weighting, self.substitution = weighting, substitution
        self.examples: dict[int, float] = {}
        self.last: dict[int, np.ndarray] = {}
        self.similarity: dict[tuple[int, int], tuple[float, int]] = {}

    def next_weights(self, start: np.ndarray, asked: Sequence[int], replies: Sequence[Reply]) -> np.ndarray:
        """The weights after a round; the old ones if no reply can be used."""
        self.examples |= {reply.node: reply.examples for reply in replies}
        used = [r for r in replies if (r.work >= 1 if self.weighting == "A" else r.work > 0)]
        if not used:
            return start
        update = {r.node: (r.weights - start) * self._device_factor(r) for r in used}
        lends = self.substitution != "none"
        cohort = sorted({*asked, *update})
        usual = sum(self.examples.values()) / len(self.examples)  # of a device that has not replied yet
        size = {node: self.examples.get(node, usual) for node in cohort}
        share = {node: size[node] / sum(size.values()) for node in cohort}
        weight = {node: share[node] for node in update}
        missing = [node for node in cohort if node not in update]
        total = np.zeros_like(start)
        spread = dict(weight)
        if self.substitution == "friends":
            self._meet(update)
        for node in missing if lends else ():
            friend = self._friend(node, sorted(update)) if self.substitution == "friends" else None
            if friend is not None:
                weight[friend] += share[node]
            elif self.substitution == "stale" and node in self.last:
                total += share[node] * self.last[node]
            else:
                for other in weight:
                    weight[other] += share[node] * spread[other] / sum(spread.values())
        if self.substitution == "stale":
            self.last |= update
        total += sum(weight[node] * update[node] for node in update)
        return start + self._server_factor(used, share, lends) * total

    def _device_factor(self, reply: Reply) -> float:
        return 1 / reply.work if self.weighting == "C" else 1 / reply.steps if self.weighting == "fednova" else 1.0

    def _server_factor(self, used: Sequence[Reply], share: Mapping[int, float], lends: bool) -> float:
        replied = sum(share[r.node] for r in used)
        if self.weighting == "fednova":
            steps = sum(share[r.node] * r.steps for r in used) / replied
            return steps if lends else steps / replied
        if lends:
            return 1.0
        return {"fedavg": 1 / replied, "A": len(share) / len(used)}.get(self.weighting, 1.0)

    def _meet(self, update: Mapping[int, np.ndarray]) -> None:
        """Learn how alike the updates of devices are that reply in the same round: the mean of ½ (cosine + 1)."""
        nodes = sorted(node for node in update if np.linalg.norm(update[node]) > 1e-12)
        for i, one in enumerate(nodes):
            for other in nodes[i + 1 :]:
                lengths = float(np.linalg.norm(update[one]) * np.linalg.norm(update[other]))
                alike = 0.5 * (float(update[one] @ update[other]) / lengths + 1)
                mean, count = self.similarity.get((one, other), (0.0, 0))
                self.similarity[one, other] = (mean * count + alike) / (count + 1), count + 1

    def _friend(self, node: int, present: Sequence[int]) -> int | None:
        known = [(self.similarity.get((min(node, p), max(node, p)), (-1.0, 0))[0], p) for p in present]
        best = max(known, key=lambda pair: (pair[0], -pair[1]))
        return best[1] if best[0] >= 0 else None


class AdvisedStrategy(FedAvg):
    """Flower's FedAvg with the advised rule, and its settings."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        asked = settings["ask"]
        super().__init__(
            fraction_train=float(asked.get("share", 1e-9)),
            min_train_nodes=int(asked.get("count", 1)),
            min_available_nodes=int(asked["least-connected"]),
            fraction_evaluate=0.0,
        )
        self.settings = settings
        self.rule = ReplyRule(settings["rule"]["weighting"], settings["rule"]["substitution"])
        self.start_arrays: ArrayRecord | None = None
        self.asked: list[int] = []
        self.known_as: dict[int, int] = {}

    @classmethod
    def from_file(cls, path: Path | None = None) -> AdvisedStrategy:
        path = path or Path(__file__).with_name("settings.toml")
        return cls(tomllib.loads(path.read_text(encoding="utf-8")))

    def run(self, grid: Grid, initial_arrays: ArrayRecord, **more: Any) -> Result:
        """All rounds; a device that has not replied within round-seconds was absent."""
        rounds, seconds = self.settings["rounds"], float(self.settings["round-seconds"])
        return self.start(grid=grid, initial_arrays=initial_arrays, num_rounds=rounds, timeout=seconds, **more)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        train = dict(self.settings["train"])
        if isinstance(train["lr"], list):  # a schedule: the rate of each round
            train["lr"] = train["lr"][min(server_round, len(train["lr"])) - 1]
        messages = list(super().configure_train(server_round, arrays, ConfigRecord({**config, **train}), grid))
        self.start_arrays, self.asked = arrays, [message.metadata.dst_node_id for message in messages]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid or self.start_arrays is None:
            return None, None
        start = {name: array.numpy() for name, array in self.start_arrays.items()}
        learnt = [name for name in start if not name.endswith(STATES)]
        found, states = [], dict[str, np.ndarray]()
        parts = [reply_parts(message) for message in valid]
        examples = sum(reported(metrics, "num-examples") for _, metrics in parts)
        for message, (arrays, metrics) in zip(valid, parts, strict=True):
            node = message.metadata.src_node_id
            self.known_as[node] = int(reported(metrics, "node", node))
            many, work, steps = (reported(metrics, name, 1.0) for name in ("num-examples", "work", "steps"))
            found.append(Reply(self.known_as[node], row({n: arrays[n] for n in learnt}), many, work, steps))
            for name in start.keys() - set(learnt):
                states[name] = states.get(name, np.zeros(())) + arrays[name] * (many / examples)
        asked = [self.known_as.get(node, node) for node in self.asked]
        after = self.rule.next_weights(row({n: start[n] for n in learnt}), asked, found)
        result, at = ArrayRecord(), 0
        for name, value in start.items():
            if name in states:
                result[name] = Array(states[name].astype(value.dtype))
                continue
            result[name] = Array(after[at : at + value.size].reshape(value.shape).astype(value.dtype))
            at += value.size
        return result, self.train_metrics_aggr_fn([message.content for message in valid], self.weighted_by_key)


def reply_parts(message: Message) -> tuple[dict[str, np.ndarray], MetricRecord]:
    """The arrays and the metrics of a reply."""
    arrays = next(iter(message.content.array_records.values()))
    metrics = next(iter(message.content.metric_records.values()))
    return {name: array.numpy() for name, array in arrays.items()}, metrics


def reported(metrics: MetricRecord, name: str, otherwise: float = 0.0) -> float:
    """A number that a device reports."""
    value = metrics.get(name, otherwise)
    return float(value) if isinstance(value, int | float) else otherwise


def row(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """All arrays in one row."""
    return np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in arrays.values()])
