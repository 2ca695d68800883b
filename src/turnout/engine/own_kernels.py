"""Inside `with ForClients():` some operations of torch are replaced by others that are fast, or possible at all, when
each client has weights of its own. A user's module needs no change.

    torch.lstm, torch.gru    engine/recurrent.py: without a batching rule of their own
    torch.conv2d             engine/stacked_convolution.py, on a GPU: under `vmap` torch makes one of many groups of it
    attention                engine/stacked_attention.py: under `vmap` torch's backward goes from client to client
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from turnout.engine.recurrent import gru, lstm
from turnout.engine.stacked_attention import attention
from turnout.engine.stacked_convolution import conv2d

# An operation that returns NotImplemented leaves the call to torch.
OWN: dict[Any, Callable[..., Any]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.conv2d: conv2d,
    torch.nn.functional.scaled_dot_product_attention: attention,
}


class ForClients(TorchFunctionMode):
    """Calls the operations of `OWN` instead of torch's."""

    def __torch_function__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        own = OWN.get(func)
        if own is not None:
            found = own(*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))
