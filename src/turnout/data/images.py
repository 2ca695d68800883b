"""Images: what all image sets share (`Images`), and `ImageFolder` for a user's own pictures.

Shape letters: S samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnout.data.files import find_path
from turnout.data.partitioned import Partitioned, Pool
from turnout.errors import Mistake

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True, kw_only=True)
class Images(Partitioned):
    """Fields of every image set: pixels are scaled to [0, 1], then (x - mean) / std, one number a channel."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std is not None and min(self.std) <= 0:
            raise Mistake(f"{type(self).__name__}(std={self.std}): a standard deviation is above 0")

    def pixels(self, bytes_S: np.ndarray) -> Tensor:
        """Bytes [S, channels, height, width] as numbers, normalised."""
        x = torch.from_numpy(bytes_S.astype(np.float32)).div_(255)
        for values, apply in ((self.mean, x.sub_), (self.std, x.div_)):
            if values is not None:
                apply(_per_channel(values, x.shape[1], type(self).__name__))
        return x


def _per_channel(values: Sequence[float], channels: int, name: str) -> Tensor:
    if len(values) not in (1, channels):
        raise Mistake(f"{name}: mean and std need 1 number or {channels}, one per channel, not {len(values)}")
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


@dataclass(frozen=True)
class ImageFolder(Images):
    """One folder a class: `path/cat/1.jpg`; or `path/train/cat/1.jpg` and `path/test/cat/2.jpg`.

    Pictures are cut to their central square and resized to `size` x `size`. Needs Pillow.
    """

    path: Path | str
    size: int = 64
    colour: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise Mistake(f"ImageFolder(size={self.size}): a picture is at least 1 pixel wide; write size=64, say")

    def read(self, data_dir: Path | None = None) -> Pool:
        root = find_path(self.path, data_dir)
        if not root.is_dir():
            raise Mistake(f"{root} is not a folder: ImageFolder expects a folder with one folder of pictures a class")
        train = root / "train" if (root / "train").is_dir() else root
        names = tuple(sorted(folder.name for folder in train.iterdir() if folder.is_dir()))
        if not names:
            raise Mistake(f"{train} has no folders: ImageFolder expects one folder of pictures a class")
        x, y = self._pictures(train, names)
        if not len(y):
            raise Mistake(f"the folders in {train} hold no pictures ({', '.join(SUFFIXES)})")
        test = self._pictures(root / "test", names) if (root / "test").is_dir() and train != root else None
        return Pool(x, y, len(names), names, test if test and len(test[1]) else None)

    def _pictures(self, folder: Path, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """All pictures below a folder, sorted by class and then by file name."""
        paths = [
            (path, label)
            for label, name in enumerate(names)
            for path in sorted((folder / name).glob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        pillow = _pillow()
        bytes_S = np.zeros((len(paths), self.size, self.size, 3 if self.colour else 1), np.uint8)
        for i, (path, _) in enumerate(paths):
            bytes_S[i] = self._picture(path, pillow)
        labels = torch.tensor([label for _, label in paths], dtype=torch.int64)
        return self.pixels(bytes_S.transpose(0, 3, 1, 2)).contiguous(), labels

    def _picture(self, path: Path, pillow: Any) -> np.ndarray:
        try:
            with pillow.open(path) as picture:
                picture = picture.convert("RGB" if self.colour else "L")
                side = min(picture.size)
                left, top = (picture.width - side) // 2, (picture.height - side) // 2
                box = (left, top, left + side, top + side)
                resized = picture.resize((self.size, self.size), pillow.Resampling.BILINEAR, box)
        except OSError as error:
            raise Mistake(f"{path} cannot be read as a picture ({error}): remove it") from error
        return np.asarray(resized).reshape(self.size, self.size, -1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise Mistake("reading pictures needs Pillow: pip install 'turnout[images]'") from error
    return Image


KINDS = {"image-folder": ImageFolder}
