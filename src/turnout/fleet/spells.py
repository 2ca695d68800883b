"""How long clients stay and stay away: runs of rounds in one state.

Shape letters: T rounds, C clients, R runs.
"""

from __future__ import annotations

import numpy as np


def runs(work_TC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of all stays and of all absences, in rounds; NaN (not asked) ends a run.

    >>> up_R, down_R = runs(np.array([[1.0], [0.5], [0.0], [1.0], [np.nan], [1.0]]))
    >>> up_R.tolist(), down_R.tolist()
    ([2, 1, 1], [1])
    """
    state_TC = np.where(np.isnan(work_TC), -1, work_TC > 0)
    border_C = np.full((1, state_TC.shape[1]), -2)
    state = np.concatenate([state_TC, border_C]).T.ravel()  # one client after the other, with a border between
    begins = np.flatnonzero(np.concatenate([[True], np.diff(state) != 0]))
    length_R = np.diff(np.concatenate([begins, [len(state)]]))
    kind_R = state[begins]
    return length_R[kind_R == 1], length_R[kind_R == 0]
