"""What the names in the records mean: which way a number is better, and the unit it is shown in.

The task knows its own metrics. What is recorded has a word before the metric's name that says of what it was measured
(`global_accuracy`), and perhaps a part of the clients after it (`personal_accuracy_worst`). A run keeps what its task
knows beside its records (`Records.describe`), because a report is made from records only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from turnout.experiment import PERSONAL_PARTS
from turnout.tasks import WELL_KNOWN, MetricInfo, TaskSpec, Unit, metric_infos

# Of what a metric was measured. The first are what runs are compared by, in this order; tracks/ and evaluation/ say
# what each means.
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
    "seconds": _SECONDS,
}
# A user's part names its numbers as it likes; these endings are a convention (`records.same` leaves times out by it).
ENDINGS: Mapping[str, MetricInfo] = {"_bytes": _BYTES, "_seconds": _SECONDS, "_time": _SECONDS}


@dataclass(frozen=True)
class Glossary:
    """How to read the numbers of a run. `metrics`: those of its task, the main one first.

    A folder of an older version does not have them: then well-known names mean what they mean everywhere, and higher
    is better for any other.

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
        if (found := self._parts(name)) is not None:
            info = self.known[found[1]]
            return replace(info, higher_is_better=False) if found[2] == "spread" else info
        endings = (info for end, info in ENDINGS.items() if name.endswith(end))
        return COLUMNS.get(name) or next(endings, MetricInfo())

    def higher_is_better(self, name: str) -> bool:
        return self.info(name).higher_is_better

    def unit(self, name: str) -> Unit:
        return self.info(name).unit

    def plain(self, name: str) -> str:
        """Which metric a name is of, whatever it was measured of.

        >>> Glossary().plain("personal_accuracy_worst"), Glossary().plain("lr")
        ('accuracy', 'lr')
        """
        found = self._parts(name)
        return name if found is None else found[1]

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names as a reader wants them: by the task's order of metrics; the first of all is the main one.

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
        """Of what, which metric, which part: ("personal", "accuracy", "worst"); None where it is no metric."""
        of, _, rest = name.partition("_")
        if of not in MEASURED or not rest:
            of, rest = "", name
        if rest in self.known:
            return of, rest, ""
        metric, _, part = rest.rpartition("_")
        return (of, metric, part) if metric in self.known and part in PERSONAL_PARTS else None
