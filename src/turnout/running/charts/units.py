"""Numbers as words: a name as a title, a value in its unit, several values as mean and deviation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from turnout.tasks import Unit as Unit

_BLOCKS = "▁▂▃▄▅▆▇█"


def title_of(name: str) -> str:
    """A name from the records as a title.

    >>> title_of("global_accuracy")
    'Global accuracy'
    """
    words = {"lr": "learning rate"}.get(name, name).replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def size(count: float) -> str:
    """Bytes, in thousands.

    >>> size(0), size(1534), size(2.5e9), size(999_960)
    ('0 B', '1.53 kB', '2.5 GB', '1 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    """A time span.

    >>> duration(0.042), duration(75), duration(7260), duration(120)
    ('0.042 s', '1 min 15 s', '2 h 1 min', '2 min')
    """
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    large, small = (f"{minutes} min", f"{rest} s") if minutes < 60 else (f"{minutes // 60} h", f"{minutes % 60} min")
    return large if small.startswith("0 ") else f"{large} {small}"


def show(value: float, unit: Unit = "number") -> str:
    """One value in its unit.

    >>> show(0.8734, "percent"), show(1234567.0), show(0.012345), show(float("nan"))
    ('87.3 %', '1,234,567', '0.0123', '–')
    """
    if math.isnan(value) or (math.isinf(value) and unit in ("bytes", "seconds")):
        return "–"
    if unit == "percent":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return size(value)
    if unit == "seconds":
        return duration(value)
    return f"{value:,.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def spread(values: Sequence[float], unit: Unit = "number") -> str:
    """Mean ± standard deviation over seeds (n - 1); the mean alone for one seed.

    >>> spread([0.8, 0.9], "percent"), spread([0.5]), spread([0.50, 0.53])
    ('85.0 ± 7.1 %', '0.5', '0.515 ± 0.021')
    """
    known = [v for v in values if not math.isnan(v)]
    if not known:
        return "–"
    mean = float(np.mean(known))
    if len(known) < 2 or not all(map(math.isfinite, known)):
        return show(mean, unit)
    deviation = float(np.std(known, ddof=1))
    if unit == "percent":
        return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    if deviation == 0:
        return f"{show(mean)} ± 0"
    digits = min(max(1 - math.floor(math.log10(deviation)), 0), 6)
    return f"{mean:,.{digits}f} ± {deviation:.{digits}f}"


def sparkline(values: Iterable[float], width: int = 24) -> str:
    """A curve as one line of text; gaps are blank.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([5.0, float("nan"), 5.0])
    '▄ ▄'
    """
    points = list(values)
    if len(points) > width:
        points = [points[round(i * (len(points) - 1) / (width - 1))] for i in range(width)]
    known = [v for v in points if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)

    def block(value: float) -> str:
        if not math.isfinite(value):
            return " "
        span = high / 2 - low / 2  # halves: the difference of two large numbers may not be finite
        return _BLOCKS[round(7 * ((value / 2 - low / 2) / span))] if span > 0 else _BLOCKS[3]

    return "".join(map(block, points))
