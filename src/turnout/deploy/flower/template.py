"""What a reply looks like, to hold replies against: names, shapes and types of everything but encoded updates.

One step is trained on samples of zeros, which needs no data but its description.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from turnout.data.description import Description
from turnout.exchange import Assignment, Download
from turnout.runtimes.clients import ClientPool
from turnout.runtimes.setup import Setup
from turnout.types import Replies


def template(setup: Setup, data: Description, download: Download) -> Replies:
    """A reply of client 0 to such a download."""
    bare = setup.experiment.but(**{"evaluate.recovery": False, "evaluate.gradients": False})
    clients = ClientPool(replace(setup, experiment=bare, federation=data.load(samples=4)))
    one = torch.zeros(1, dtype=torch.int64)
    start = None if download.start_CP is None else download.start_CP[:1]
    asked = replace(download.among(one) if start is None else replace(download, client_C=one), start_CP=start)
    return clients.work(asked, Assignment(one, torch.ones(1, dtype=torch.int64)))[0]
