"""A log as Parquet, read with pyarrow, which `make test-slow` installs: the same fleet as from a CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout as to
from turnout.cli import main
from turnout.errors import UserError
from turnout.fleet import Reading, read_fleet
from turnout.fleet.example import ExampleFleet

pytestmark = pytest.mark.slow


@pytest.fixture
def logs(tmp_path: Path) -> tuple[Path, Path]:
    """The example's log in both forms, this one with columns of types: times, numbers, and names in a dictionary."""
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet

    ExampleFleet(devices=20, days=7).write(tmp_path / "log.csv")
    table = arrow_csv.read_csv(tmp_path / "log.csv")
    table = table.set_column(table.column_names.index("device"), "device", table["device"].dictionary_encode())
    parquet.write_table(table, tmp_path / "log.parquet", row_group_size=100)
    return tmp_path / "log.csv", tmp_path / "log.parquet"


def test_a_log_is_the_same_fleet_in_both_forms(logs: tuple[Path, Path]) -> None:
    reading = Reading(every="1h")
    text, columns = (read_fleet(path, reading) for path in logs)
    assert text.rows() == columns.rows()
    assert text.assumed == columns.assumed
    assert text.is_calendar
    assert columns.is_calendar
    assert text.examples_M is not None
    assert columns.examples_M is not None
    assert np.array_equal(text.examples_M, columns.examples_M)


def test_the_commands_read_it(logs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    main(["fleet", str(logs[0]), "--every", "1h", "--quick"])
    said = capsys.readouterr().out
    main(["fleet", str(logs[1]), "--every", "1h", "--quick"])
    assert capsys.readouterr().out.replace("log.parquet", "log.csv") == said
    experiment = to.Experiment(to.World(to.data.Digits(clients=20)), to.models.MLP(8), rounds=4)
    advice = to.advise(
        logs[1], experiment, reading=Reading(every="1h"), only=["FedAvg", "stale"], seeds=4, tune=False,
        quiet=True, out=logs[1].parent / "advice", jobs=1,
    )  # fmt: skip
    again = (logs[1].parent / "advice" / "recommended.toml").read_text()
    assert "log.parquet" in again
    assert advice.recommended in ("FedAvg", "stale")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / "log.parquet"
    when = np.array(["2026-03-01T10:05", "2026-03-01T12:30", "NaT"], dtype="datetime64[ns]")
    parquet.write_table(arrow.table({"when": when, "user": ["a", None, "c"], "work": [0.5, 7.0, 1.0]}), path)
    with pytest.raises(UserError, match=r"(?s)3 faults.*row 2: user is empty.*row 2: work.*row 3: when must be a time"):
        read_fleet(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"log.parquet begins like a Parquet file, but cannot be read"):
        read_fleet(path)
    parquet.write_table(arrow.table({"round": [0, 1], "client": [[1], [2]]}), path)
    with pytest.raises(UserError, match=r"column 'client' has .*list"):
        read_fleet(path)
