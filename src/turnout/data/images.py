"""Images: the settings of all image sets (`Images`), and `ImageFolder` for a user's own pictures.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnout.data.columns import some
from turnout.data.files import find_path
from turnout.data.partition import Partition
from turnout.data.partitioned import Partitioned, Pool
from turnout.data.pooled import Pooled
from turnout.data.text_table import number_values
from turnout.errors import UserError, nearest

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True, kw_only=True)
class Images(Partitioned):
    """An image set; pixels are scaled to [0, 1], then (x - mean) / std.

    mean   one number, or one per channel
    std    one number, or one per channel
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std is not None and min(self.std) <= 0:
            raise UserError(f"{type(self).__name__}(std={self.std}): a standard deviation is above 0")

    def pixels(self, bytes_S: np.ndarray) -> Tensor:
        """Bytes [S, channels, height, width] as numbers, normalised."""
        x = torch.from_numpy(bytes_S.astype(np.float32)).div_(255)
        for values, apply in ((self.mean, x.sub_), (self.std, x.div_)):
            if values is not None:
                if len(values) not in (1, x.shape[1]):
                    raise UserError(
                        f"{type(self).__name__}: mean and std need 1 number or {x.shape[1]}, one per channel, not "
                        f"{len(values)}"
                    )
                apply(torch.tensor(values, dtype=torch.float32).view(-1, 1, 1))
        return x


@dataclass(frozen=True)
class ImageFolder(Images):
    """One folder per class: `path/cat/1.jpg`; with owner="folder" one folder per client: `path/ann/cat/1.jpg`.

    Below `path` there may be `train` and `test`, each of that form; `test` is then the central test set. Needs Pillow.

    path        the folder
    size        pictures are cut to their central square and resized to size x size
    colour      three channels, or one (grey)
    owner       "folder" for one folder per client, None for none
    labels      the classes in their order; None for the folders that exist (devices that hold a folder each need the
                same list)
    clients     how many; None for one per owner
    partition   who gets which pictures; None for `Natural` where there are owners, `IID` where not
    """

    path: Path | str
    size: int = 64
    colour: bool = True
    owner: str | None = None
    labels: tuple[str, ...] | None = None
    clients: int | None = field(default=None, kw_only=True)
    partition: Partition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise UserError(f"ImageFolder(size={self.size}): a picture is at least 1 pixel wide; write size=64, say")
        if self.owner not in (None, "folder"):
            raise UserError(f"ImageFolder(owner={self.owner!r}): {nearest(self.owner, ['folder'])}, one per client")

    def load(self, seed: int = 0, data_dir: Path | None = None) -> Pooled:
        if self.clients is None and self.owner is None:
            raise UserError(
                "ImageFolder: set the number of clients (clients=...), or put the pictures of each client in a folder "
                "of its own, owner/class/file (owner='folder')"
            )
        return super().load(seed, data_dir)

    def read(self, data_dir: Path | None = None) -> Pool:
        root = find_path(self.path, data_dir)
        if not root.is_dir():
            raise UserError(f"{root} is not a folder: ImageFolder expects one folder of pictures per class in it")
        train = root / "train" if (root / "train").is_dir() else root
        found = self._found(train)
        if not found:
            raise UserError(f"the folders in {train} hold no pictures ({', '.join(SUFFIXES)})")
        folders = {path.name for path in train.glob("*/*" if self.owner else "*") if path.is_dir()}
        names = self.labels or tuple(sorted({picture.label for picture in found} | folders))
        if strange := [picture for picture in found if picture.label not in names]:
            raise UserError(
                f"{strange[0].path} is of class {strange[0].label!r}, which is not among the labels ({some(names)}): "
                "add it there, or remove its folder"
            )
        x, y = self._pictures(found, names)
        owner_S, owners = number_values([picture.owner for picture in found]) if self.owner else (None, ())
        tested = self._found(root / "test") if (root / "test").is_dir() and train != root else []
        test = self._pictures([picture for picture in tested if picture.label in names], names) if tested else None
        return Pool(x, y, len(names), names, test if test and len(test[1]) else None, owner_S, owners)

    def _found(self, folder: Path) -> list[_Picture]:
        """All pictures below a folder, sorted by owner, by class and then by file name."""
        inside = _folders(folder)
        if not inside:
            kind = "client, and in it one per class" if self.owner else "class"
            raise UserError(f"{folder} has no folders: ImageFolder expects one folder of pictures per {kind}")
        if not self.owner:
            return [_Picture(path, of.name) for of in inside for path in _images(of)]
        found = []
        for owner in inside:
            classes, expected = _folders(owner), "with owner='folder' pictures are owner/class/file"
            if not classes:
                raise UserError(f"there are no folders of classes in {owner}: {expected}")
            if stray := _images(owner):
                raise UserError(f"{stray[0]} lies beside the folders of classes: {expected}")
            found += [_Picture(path, of.name, owner.name) for of in classes for path in _images(of)]
        return found

    def _pictures(self, found: Sequence[_Picture], names: Sequence[str]) -> tuple[Tensor, Tensor]:
        try:
            from PIL import Image
        except ImportError as error:
            raise UserError("reading pictures needs Pillow: pip install 'turnout[images]'") from error
        bytes_S = np.zeros((len(found), self.size, self.size, 3 if self.colour else 1), np.uint8)
        for i, (path, *_) in enumerate(found):
            try:
                with Image.open(path) as file:
                    picture = file.convert("RGB" if self.colour else "L")
                    side = min(picture.size)
                    left, top = (picture.width - side) // 2, (picture.height - side) // 2
                    box = (left, top, left + side, top + side)
                    resized = picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
            except (
                Exception
            ) as error:  # Pillow raises OSError, SyntaxError, ValueError and struct.error on damaged files
                raise UserError(f"{path} cannot be read as a picture ({error}): remove it") from error
            bytes_S[i] = np.asarray(resized).reshape(self.size, self.size, -1)
        labels = torch.tensor([names.index(picture.label) for picture in found], dtype=torch.int64)
        return self.pixels(bytes_S.transpose(0, 3, 1, 2)).contiguous(), labels


class _Picture(NamedTuple):
    path: Path
    label: str
    owner: str = ""


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def _images(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*")) if path.suffix.lower() in SUFFIXES]


KINDS = {"image-folder": ImageFolder}
