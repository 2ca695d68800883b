"""What the names in the records mean: which way a number is better, and its unit.

The task knows its own metrics. A recorded name has a word before the metric that names the model (`global_accuracy`),
and perhaps a part of the clients after it (`personal_accuracy_worst`). A run writes what its task knows beside its
records (`Records.describe`), because a report is made from records only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from turnout.experiment import PERSONAL_PARTS
from turnout.tasks import WELL_KNOWN, MetricInfo, TaskSpec, Unit, metric_infos

# The model a metric was measured on. Runs are compared by the first ones, in this order.
COMPARED = ("global", "consensus", "personal", "client", "")
MEASURED = {*COMPARED, "former", "members", "shown", "before", "after", "local", "updated", "distilled"}

_COUNT, _LOWER = MetricInfo(unit="count"), MetricInfo(False)
_BYTES, _SECONDS = MetricInfo(False, "bytes"), MetricInfo(False, "seconds")
# Columns that every round has, and numbers that our own parts add.
COLUMNS: Mapping[str, MetricInfo] = {
    **dict.fromkeys(("members", "asked", "answered", "counted"), _COUNT),
    **dict.fromkeys(("train_loss", "elastic_loss", "substitution_error"), _LOWER),
    **dict.fromkeys(("late", "age"), _LOWER),
    **dict.fromkeys(("bytes_up", "bytes_down"), _BYTES),
    "work": MetricInfo(True, "percent"),
    "discarded_energy": MetricInfo(False, "percent"),
    "seconds": _SECONDS,
}
# Conventional endings of numbers that users' parts record.
ENDINGS: Mapping[str, MetricInfo] = {"_bytes": _BYTES, "_seconds": _SECONDS, "_time": _SECONDS}


@dataclass(frozen=True)
class Glossary:
    """How to read the numbers of a run.

    metrics  those of its task, the main one first; well-known names that are not among them have their usual meaning,
             and higher is better for any other

    >>> glossary = Glossary({"surprise": MetricInfo(False)})
    >>> glossary.higher_is_better("global_surprise"), glossary.unit("personal_accuracy_worst")
    (False, 'percent')
    """

    metrics: Mapping[str, MetricInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, task: TaskSpec) -> Glossary:
        return cls(metric_infos(task))

    @property
    def known(self) -> dict[str, MetricInfo]:
        """The task's metrics, then the well-known ones."""
        return {**self.metrics, **{name: info for name, info in WELL_KNOWN.items() if name not in self.metrics}}

    def info(self, name: str) -> MetricInfo:
        """Which way a number is better and its unit, by its name in the records."""
        if (parts := self._parts(name)) is not None:
            info = self.known[parts[1]]
            return replace(info, higher_is_better=False) if parts[2] == "spread" else info
        endings = (info for end, info in ENDINGS.items() if name.endswith(end))
        return COLUMNS.get(name) or next(endings, MetricInfo())

    def higher_is_better(self, name: str) -> bool:
        return self.info(name).higher_is_better

    def unit(self, name: str) -> Unit:
        return self.info(name).unit

    def plain(self, name: str) -> str:
        """The metric in a recorded name.

        >>> Glossary().plain("personal_accuracy_worst"), Glossary().plain("lr")
        ('accuracy', 'lr')
        """
        parts = self._parts(name)
        return name if parts is None else parts[1]

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names in the task's order of metrics; the first is the main one.

        >>> Glossary().in_order(["auc", "global_loss", "personal_accuracy", "global_accuracy"])
        ['global_accuracy', 'personal_accuracy', 'global_loss', 'auc']
        """
        order = list(self.known)

        def rank(name: str) -> tuple[int, int, bool, str]:
            of, metric, part = self._parts(name) or ("other", "", "")
            last = (len(order), 0) if part or of not in COMPARED else (order.index(metric), COMPARED.index(of))
            return *last, not self.higher_is_better(name), name

        return sorted(names, key=rank)

    def _parts(self, name: str) -> tuple[str, str, str] | None:
        """Model, metric and part, such as ("personal", "accuracy", "worst"); None if the name is not a metric."""
        of, _, rest = name.partition("_")
        if of not in MEASURED or not rest:
            of, rest = "", name
        if rest in self.known:
            return of, rest, ""
        metric, _, part = rest.rpartition("_")
        return (of, metric, part) if metric in self.known and part in PERSONAL_PARTS else None
