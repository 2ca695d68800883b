"""Images: the settings of all image sets (`Images`), and `ImageFolder` for a user's own pictures.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from turnout.data.columns import some
from turnout.data.files import find_path
from turnout.data.partitioned import MayHaveOwners, Partitioned, Pool
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
class ImageFolder(MayHaveOwners, Images):
    """One folder per class: `path/cat/1.jpg`; with owner="folder" one folder per client: `path/ann/cat/1.jpg`.

    Below `path` there may be `train` and `test`, each of that form; `test` is then the central test set. Needs Pillow.

    path        the folder
    size        pictures are cut to their central square and resized to size x size
    colour      three channels, or one (grey)
    owner       "folder" for one folder per client, None for none
    labels      the classes in their order; None for the folders that exist (devices that hold a folder each need the
                same list)
    """

    path: Path | str
    size: int = 64
    colour: bool = True
    owner: str | None = None
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise UserError(f"ImageFolder(size={self.size}): a picture is at least 1 pixel wide; write size=64, say")
        if self.owner not in (None, "folder"):
            raise UserError(f"ImageFolder(owner={self.owner!r}): {nearest(self.owner, ['folder'])}, one per client")

    def read(self, data_dir: Path | None = None) -> Pool:
        root = find_path(self.path, data_dir)
        train = root / "train" if (root / "train").is_dir() else root
        found, folders = self._found(train)
        names = self.labels or tuple(sorted(folders))
        if strange := [path for path in found if path.parent.name not in names]:
            raise UserError(
                f"{strange[0]} is of class {strange[0].parent.name!r}, which is not among the labels ({some(names)}): "
                "add it there, or remove its folder"
            )
        x, y = self._pictures(found, names)
        owner_S, owners = number_values([path.parents[1].name for path in found]) if self.owner else (None, ())
        test = None
        if train != root and (root / "test").is_dir():
            tested = [path for path in self._found(root / "test")[0] if path.parent.name in names]
            test = self._pictures(tested, names) if tested else None
        return Pool(x, y, len(names), names, test, owner_S, owners)

    def _found(self, folder: Path) -> tuple[list[Path], set[str]]:
        """All pictures below a folder, sorted by owner, by class and then by file name; and the classes' names."""
        below = "*/*" if self.owner else "*"
        folders = sorted(path for path in folder.glob(below) if path.is_dir())
        found = [path for of in folders for path in sorted(of.iterdir()) if path.suffix.lower() in SUFFIXES]
        form = "owner/class/file (owner='folder')" if self.owner else "class/file"
        if stray := [path for path in sorted(folder.glob(below)) if path.suffix.lower() in SUFFIXES]:
            raise UserError(f"{stray[0]} lies beside the folders of classes: pictures in {folder} are {form}")
        if not found:
            raise UserError(
                f"{folder} has no pictures ({', '.join(SUFFIXES)}) in folders of classes: expected is {form}"
            )
        return found, {of.name for of in folders}

    def _pictures(self, found: Sequence[Path], names: Sequence[str]) -> tuple[Tensor, Tensor]:
        try:
            from PIL import Image
        except ImportError as error:
            raise UserError("reading pictures needs Pillow: pip install 'turnout[images]'") from error
        bytes_S = np.zeros((len(found), self.size, self.size, 3 if self.colour else 1), np.uint8)
        for i, path in enumerate(found):
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
        labels = torch.tensor([names.index(path.parent.name) for path in found], dtype=torch.int64)
        return self.pixels(bytes_S.transpose(0, 3, 1, 2)).contiguous(), labels


KINDS = {"image-folder": ImageFolder}
