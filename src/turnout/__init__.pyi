from collections.abc import Collection
from typing import Any

from turnout.public import *  # noqa: F403

__version__: str

def kinds_in(place: str, leave_out: Collection[str] = ...) -> dict[str, Any]: ...
