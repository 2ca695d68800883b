"""One reader for tables in files: CSV, and other formats through DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
import torch

import turnout as to
from turnout.errors import UserError
from turnout.machine import table_files
from turnout.machine.table_files import TableBlock, open_table


def written(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_csv_is_read_with_any_separator(tmp_path, separator):
    path = written(tmp_path, "\ufeffa, b \n1,x y\n 2 ,\n".replace(",", separator))
    table = open_table(path)
    assert (table.header, table.separator, table.counted_in) == (["a", "b"], separator, "line")
    assert table.read() == TableBlock({"a": ["1", "2"], "b": ["x y", ""]}, [2, 3])
    assert table.read(["b"]).cells == {"b": ["x y", ""]}


def test_rows_come_in_blocks_with_the_lines_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "BLOCK_ROWS", 2)
    table = open_table(written(tmp_path, 'a,b\n"two\nlines",1\n\n3,4\n , , \n5,6\n'))
    assert [(block.cells["a"], list(block.line_B)) for block in table.blocks()] == [
        (["two\nlines", "3"], [2, 5]),
        (["5"], [7]),
    ]


def test_a_row_of_another_length_is_an_error_or_reported(tmp_path):
    table = open_table(written(tmp_path, "a,b\n1\n2,3\n4,5,6\n"))
    with pytest.raises(UserError, match=r"t\.csv, line 2: the header has 2 columns, this row has 1"):
        table.read()
    found: list[tuple[int, str]] = []
    (block,) = table.blocks(bad_row=lambda line, words: found.append((line, words)))
    assert block.cells == {"a": ["2"], "b": ["3"]}
    assert [line for line, _ in found] == [2, 4]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"\n1,2\n", "empty"), (b"a,b,a\n", "two columns .* 'a'"), (b"a\n\xe9\n", "UTF-8")],
)
def test_files_that_are_not_tables_are_refused(tmp_path, content, words):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match=rf"t\.csv.*{words}"):
        open_table(tmp_path / "t.csv").read()
    with pytest.raises(UserError, match=r"none\.csv"):
        open_table(tmp_path / "none.csv")


def test_parquet_is_read_like_a_csv(tmp_path):
    path = tmp_path / "t.bin"
    duckdb.sql(f"COPY (FROM (VALUES ('ann', 30.5), (NULL, 40.0)) t(who, age)) TO '{path}' (FORMAT parquet)")
    table = open_table(path)
    assert (table.header, table.counted_in, table.separator) == (["who", "age"], "row", None)
    block = table.read()
    assert block.cells["who"] == ["ann", ""]
    assert list(map(float, block.cells["age"])) == [30.5, 40.0]
    assert list(block.line_B) == [1, 2]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"t\.bin begins like a Parquet file, but cannot be read"):
        open_table(path).read()


def test_a_column_of_several_values_is_refused(tmp_path):
    (tmp_path / "t.json").write_text('{"who": "ann", "parts": {"a": 1}}\n')
    with pytest.raises(UserError, match=r"column 'parts' has a STRUCT.* in each row, not one value"):
        open_table(tmp_path / "t.json").read()


def test_a_data_set_from_parquet_is_the_one_from_csv(tmp_path):
    rows = "".join(f"{'ulm' if i % 3 else 'bonn'},{i},{'' if i % 5 == 0 else 'cook'},{i * 1.5}\n" for i in range(40))
    path = written(tmp_path, "town,age,job,income\n" + rows)
    duckdb.sql(f"COPY (FROM '{path}') TO '{tmp_path / 't.parquet'}' (FORMAT parquet)")
    text, columns = (to.data.Table(tmp_path / name, "income", "town").load(3) for name in ("t.csv", "t.parquet"))
    assert (text.names, text.standardised) == (columns.names, columns.standardised)
    assert torch.equal(text.x, columns.x)
    assert torch.equal(text.y, columns.y)
