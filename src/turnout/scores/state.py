"""Everything the server of the score track carries from round to round."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.scores.exchange import Averages
from turnout.scores.score_table import ScoreTable
from turnout.types import State
from turnout.world.members import Members


@dataclass(frozen=True, eq=False)
class ScoreServer:
    """The global scores, who is a member, and the averages of weights where start = "averaged"."""

    table: ScoreTable
    members: Members
    averages: Averages

    def to_state(self) -> State:
        """As a tree for a checkpoint."""
        return {"table": self.table.to_state(), "members": self.members.to_state(), "averages": self.averages}

    @classmethod
    def from_state(cls, state: State) -> ScoreServer:
        return cls(ScoreTable.from_state(state["table"]), Members.from_state(state["members"]), state["averages"])
