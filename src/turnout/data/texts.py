"""`Texts`: texts as tokens, for models that predict the next token or a label for each text.

Shape letters: S samples, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turnout.data.columns import listed_once, number_labels
from turnout.data.description import Description
from turnout.data.federation import digest
from turnout.data.files import find_path
from turnout.data.partitioned import MayHaveOwners, Pool
from turnout.data.text_table import Columns, TextTable, files_at, read_tables
from turnout.errors import UserError, optional
from turnout.inputs import MASK, Inputs
from turnout.tasks import IGNORED

BYTES = "bytes"
IDS = "input_ids"
PLAIN = (".txt", ".text", ".md")  # a file is one text; other files are tables


class Tokenizer:
    """Texts to numbers of tokens: by the bytes of their UTF-8, or by a tokenizer of a local folder or file.

    >>> bytes_ = Tokenizer(BYTES, None)
    >>> bytes_.numbers(["ab"]), bytes_.tokens, bytes_.text([104, 105])
    ([[97, 98]], 256, 'hi')
    """

    def __init__(self, given: Path | str, data_dir: Path | None):
        self.library: Any = None  # of the package tokenizers, or of transformers
        self.tokens, self.mark = 256, digest(BYTES)
        if str(given) == BYTES:
            return
        path = find_path(given, data_dir)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            if file.is_file():
                self.library = optional("tokenizers", "a tokenizer of a folder", "finetuning").Tokenizer.from_file(
                    str(file)
                )
                self.tokens, content = self.library.get_vocab_size(), self.library.to_str()
            else:
                transformers = optional("transformers", "a tokenizer of a folder", "finetuning")
                self.library = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
                self.tokens, content = len(self.library), repr(sorted(self.library.get_vocab().items()))
        except UserError:
            raise
        except Exception as error:  # the libraries raise plain ones
            words = " ".join(str(error).split())[:200]
            raise UserError(f"{path} has no tokenizer that can be loaded ({words}): give the folder of one") from error
        self.mark = digest(content)

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        if self.library is None:
            return [list(text.encode()) for text in texts]
        if hasattr(self.library, "encode_batch"):
            return [found.ids for found in self.library.encode_batch(list(texts))]
        found: list[list[int]] = self.library(list(texts))[IDS]
        return found

    def text(self, numbers: Sequence[int]) -> str:
        """The text of some tokens."""
        if self.library is None:
            return bytes(numbers).decode(errors="replace")
        found: str = self.library.decode(list(numbers))
        return found


@dataclass(frozen=True)
class Texts(MayHaveOwners):
    """Texts as tokens, one client per file or per owner: the model's inputs are `input_ids` and `attention_mask`.

    Without a label column the targets are the tokens themselves (task NextToken): a text is cut into windows of
    `length` tokens, the last of which may be shorter. With one, each text is a sample with a class, cut after `length`
    tokens. Shorter samples are filled up; the mask says so, and a batch is as long as its longest sample.

    path          a text file (.txt, .text, .md), a folder of them or a pattern: a file is a client; or a table
                  (CSV, Parquet), a folder or a pattern: a row is a text
    tokenizer     "bytes" (256 tokens), or a local folder or file with a tokenizer (tokenizer.json, or as
                  save_pretrained writes it)
    length        the most tokens of a sample
    text_column   the column of the texts, in a table
    owner_column  the column that names the owner, or several together; None: every row is a client (unless clients or
                  partition say otherwise)
    label_column  the column of the classes; None: the next token is predicted
    labels        the classes in their order; None for those that occur (devices need them)
    """

    path: Path | str
    tokenizer: Path | str = BYTES
    length: int = 128
    text_column: str = "text"
    owner_column: Columns = None
    label_column: str | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2:
            raise UserError(
                f"Texts(length={self.length}): a sample has at least 2 tokens, one to predict the next from"
            )
        if self.labels is not None and (self.label_column is None or not listed_once(self.labels)):
            raise UserError("Texts(labels=...) lists every class of label_column once")

    @cached_property
    def _tokenizers(self) -> dict[Path | None, Tokenizer]:
        return {}

    def tokens(self, data_dir: Path | None = None) -> Tokenizer:
        if data_dir not in self._tokenizers:
            self._tokenizers[data_dir] = Tokenizer(self.tokenizer, data_dir)
        return self._tokenizers[data_dir]

    def read(self, data_dir: Path | None = None) -> Pool:
        name, files = files_at(self.path, data_dir, "*.txt")
        if all(file.suffix in PLAIN for file in files):
            if self.label_column is not None:
                raise UserError(f"{name} is plain text, which has no column {self.label_column!r}: give a table")
            texts = [_content(file) for file in files]
            owner_S, owners = torch.arange(len(files)), tuple(file.stem for file in files)
            if len(set(owners)) < len(owners):
                owners = tuple(str(file) for file in files)
            return self._windows(texts, owner_S, owners, data_dir)
        table = read_tables(self.path, data_dir)
        texts = table.column(self.text_column)
        owned: tuple[Tensor | None, tuple[str, ...]] = table.owners(self.owner_column)
        if not self.owner_column and self.clients is None and self.partition is None:
            owned = torch.arange(len(texts)), tuple(f"row {i}" for i in range(len(texts)))
        if self.label_column is None:
            return self._windows(texts, *owned, data_dir)
        y, labels = number_labels(table, self.label_column, table.column(self.label_column), self.labels)
        x, mark = self.inputs(texts, data_dir), self.tokens(data_dir).mark
        return Pool(x, y, len(labels), labels, None, *owned, mark)

    def _windows(
        self, texts: Sequence[str], owner_S: Tensor | None, owners: tuple[str, ...], data_dir: Path | None
    ) -> Pool:
        """Samples for predicting the next token; a window of a single token is left out."""
        tokenizer = self.tokens(data_dir)
        found, owned = list[list[int]](), list[int]()
        listed = [0] * len(texts) if owner_S is None else owner_S.tolist()
        for numbers, owner in zip(tokenizer.numbers(texts), listed, strict=True):
            windows = [numbers[i : i + self.length] for i in range(0, len(numbers), self.length)]
            windows = [window for window in windows if len(window) > 1]
            found, owned = found + windows, owned + [owner] * len(windows)
        if not found:
            raise UserError(f"{self.path}: there is no text of at least 2 tokens")
        x = self._filled(found)
        y = torch.where(x[MASK] == 1, x[IDS], IGNORED)
        own_S, names = None, tuple[str, ...]()
        if owner_S is not None:  # numbered again without those that have no window
            kept = sorted(set(owned))
            own_S = torch.searchsorted(torch.tensor(kept), torch.tensor(owned))
            names = tuple(owners[owner] for owner in kept)
        return Pool(x, y, tokenizer.tokens, (), None, own_S, names, tokenizer.mark)

    def inputs(self, texts: Sequence[str], data_dir: Path | None = None) -> Inputs:
        """Each text as a sample, cut after `length` tokens."""
        return self._filled([numbers[: self.length] for numbers in self.tokens(data_dir).numbers(texts)])

    def inputs_of(self, table: TextTable, data_dir: Path | None = None) -> Inputs:
        """The texts of a table's rows as samples."""
        return self.inputs(table.column(self.text_column), data_dir)

    def _filled(self, samples: Sequence[Sequence[int]]) -> Inputs:
        ids_ST = torch.zeros(len(samples), self.length, dtype=torch.int64)
        length_S = torch.tensor([len(sample) for sample in samples])
        for i, sample in enumerate(samples):
            ids_ST[i, : len(sample)] = torch.tensor(sample, dtype=torch.int64)
        return Inputs({IDS: ids_ST, MASK: (torch.arange(self.length) < length_S[:, None]).long()})

    def fixed(self, seed: int = 0, data_dir: Path | None = None) -> Texts:
        """The same texts with their classes as labels, for devices to share."""
        return self if self.label_column is None else replace(self, labels=self.read(data_dir).labels)

    def declared(self) -> Description | None:
        if self.label_column is not None and self.labels is None:
            return None
        tokenizer, shape = self.tokens(), ((self.length,), "int64")
        return Description(
            clients=self.clients or 1, input_shape=(self.length,), input_type="int64",
            target_shape=(self.length,) if self.labels is None else (), target_type="int64",
            classes=tokenizer.tokens if self.labels is None else len(self.labels), labels=self.labels or (),
            words=tokenizer.mark, inputs={IDS: shape, MASK: shape},
        )  # fmt: skip


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as a text in UTF-8: {error}") from error


KINDS = {"texts": Texts}
