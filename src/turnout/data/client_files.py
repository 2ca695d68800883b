"""`ClientFiles`: one file per client, of arrays or of a table."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from turnout.data.files import find_path
from turnout.data.generated import Generated
from turnout.data.loaders import Arrays, Loader, check_labels
from turnout.data.own import as_samples
from turnout.data.pooled import Pooled
from turnout.data.tables import Table
from turnout.errors import UserError
from turnout.machine.checksums import UNREADABLE


@dataclass(frozen=True)
class ClientFiles:
    """One file per client; clients are named by their files.

    An `.npz` or `.safetensors` file has arrays `x` and `y`, and is read when its client's data is needed.

    With pattern="*.csv" files are tables with the same columns. They are read at once, since the categories and means
    of columns are those of all clients: this is `Table("folder/*.csv", label)`, which has more settings.

    path         the folder
    pattern      which of its files are read
    classes      how many; needed for whole-number targets, others are regression
    labels       the names of the classes
    test_share   the share of its samples that a client keeps for testing
    label        of tables, the column to predict
    """

    path: Path | str
    pattern: str = "*.npz"
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    test_share: float = 0.2
    label: str | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            if self.classes < 1:
                raise UserError(f"ClientFiles(classes={self.classes}): there must be at least 1 class")
            check_labels("ClientFiles", self.classes, self.labels)

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Generated | Pooled:
        folder = find_path(self.path, data_dir)
        if self.pattern.lower().endswith(".csv"):
            if self.label is None:
                raise UserError(
                    f"ClientFiles(pattern={self.pattern!r}): write label=..., the name of the column to predict"
                )
            if self.classes is not None or self.labels is not None:
                raise UserError("ClientFiles: classes and labels of CSV files are taken from the files: leave them out")
            return Table(folder / self.pattern, self.label, test_share=self.test_share).load(seed)
        if self.label is not None:
            raise UserError(f"ClientFiles(pattern={self.pattern!r}): label is for CSV files, others have an array y")
        try:
            paths = tuple(sorted(folder.glob(self.pattern)))
        except (ValueError, NotImplementedError) as error:  # pathlib's for an empty and for an absolute pattern
            raise UserError(
                f"ClientFiles(pattern={self.pattern!r}): give a pattern for the files of {folder}, such as '*.npz' "
                f"({error})"
            ) from error
        if not paths:
            raise UserError(f"{folder} has no files {self.pattern!r}: one file per client is expected there")
        x, y = as_samples(*_arrays(paths, 0), str(paths[0]))
        if self.classes is None and not y.is_floating_point():
            raise UserError("ClientFiles: set the number of classes (classes=...)")
        loader = Loader(
            partial(_arrays, paths),
            clients=len(paths),
            input_shape=tuple(x.shape[1:]),
            classes=self.classes or y.shape[1],
            labels=() if y.is_floating_point() else self.labels,
            names=tuple(path.stem for path in paths),
            test_share=self.test_share,
        )
        return loader.load(seed)


def _arrays(paths: tuple[Path, ...], client: int) -> Arrays:
    """x and y of a client's file, without unpickling."""
    path = paths[client]
    try:
        if path.suffix == ".safetensors":
            held = load_file(path)
            return held["x"], held["y"]
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    # zipfile raises NotImplementedError for an archive that is packed in an unknown way, or damaged to look so
    except (*UNREADABLE, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is not a file with arrays x and y ({error}): write it again") from error


KINDS = {"client-files": ClientFiles}
