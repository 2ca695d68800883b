"""What the record of a round says of its exchanges."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.runtimes.schema import shown
from turnout.types import Extra


@dataclass
class Notes:
    """What the record of a round should say beside its turnout."""

    refused: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: int = 0
    late_used: int = 0
    unreachable: int = 0

    def extra(self) -> Extra:
        said: Extra = {
            name: "; ".join(map(shown, words))
            for name in ("refused", "declined", "failed")
            if (words := getattr(self, name))
        }
        counts = {name: float(n) for name in ("late", "late_used", "unreachable") if (n := getattr(self, name))}
        return said | counts
