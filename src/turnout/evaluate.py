"""The settings of evaluation, without the code that measures."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.errors import UserError


@dataclass(frozen=True)
class Evaluate:
    """What to measure and how often.

    every         the global model is measured on the central test set every so many rounds, and at the end
    per_client    also the global model on each member's own test data (`client_...`)
    personal      also each member's own model, personal parameters included, on its own test data (`personal_...`):
                  after download, before training; by default if something is personal
    clients       how many members are measured one by one: a fixed sample if there are more
    substitution  also train absent clients (only a simulation can; nothing of it is used), to record how far each
                  round's sum is from that of complete work by all, and whether stand-ins are of the same cluster
    recovery      participants measure their own models before and after local training, every round: the drop at
                  aggregation and the recovery by training (`before_...`, `after_...`)
    gradients     participants report the mean magnitude of their gradients, by parameter (`gradient_...`)
    activations   participants compare their neurons before and after aggregation, with their own BatchNorm and with
                  the averaged one: paper 004, (10) (`neurons_...`)
    """

    every: int = 1
    per_client: bool = False
    personal: bool | None = None
    clients: int = 1000
    substitution: bool = False
    recovery: bool = False
    gradients: bool = False
    activations: bool = False

    def __post_init__(self) -> None:
        if self.every < 1 or self.clients < 1:
            raise UserError(
                f"evaluate.every and evaluate.clients must be at least 1, not {self.every} and {self.clients}"
            )
