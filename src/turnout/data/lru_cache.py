"""A least-recently-used cache that is bounded by bytes, not by the number of entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class LRUCache:
    """At most `limit` bytes, but always the last entry; a copy sent to another process starts empty.

    >>> cache = LRUCache(limit=10)
    >>> for name in ("a", "b", "c"):
    ...     cache.put(name, name.upper(), size=5)
    >>> cache.get("a"), cache.get("b")
    (None, 'B')
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any | None:
        if key not in self.values:
            return None
        self.values.move_to_end(key)
        return self.values[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        self.held -= self.values.pop(key, (None, 0))[1]
        self.values[key] = (value, size)
        self.held += size
        while self.held > self.limit and len(self.values) > 1:
            self.held -= self.values.popitem(last=False)[1][1]

    def __reduce__(self) -> tuple[type[LRUCache], tuple[int]]:
        return LRUCache, (self.limit,)
