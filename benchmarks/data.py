"""An epoch of CIFAR-10's size with crop, mirror image and normalization: `regrow.data` against DataLoader.

Both get the same images and make the same kind of batches (float32, 128 images). The DataLoader runs the
usual per-sample transforms, once on tensors and once on Pillow images; one thread, no worker processes.
The images are noise of CIFAR-10's shape, which is the same work as CIFAR-10 and needs no file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from benchmarks.runner import interleave, report
from regrow import data

BATCH = 128
ROUNDS = 3


class OnTensors(Dataset[tuple[Tensor, int]]):
    """Pad, crop, mirror and normalize one image at a time with tensor operations."""

    def __init__(self, images: data.ImageSet) -> None:
        self.images, self.labels, self.info = images.images, images.labels.tolist(), images.info
        self.mean = torch.tensor(self.info.mean).view(3, 1, 1)
        self.std = torch.tensor(self.info.std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pad, size = self.info.pad, self.info.size
        row, column, mirror = torch.randint(0, 2 * pad + 1, (3,)).tolist()
        image = F.pad(self.images[index], (pad, pad, pad, pad))[:, row : row + size, column : column + size]
        image = image.flip(2) if mirror % 2 else image
        return image.float().div_(255).sub_(self.mean).div_(self.std), self.labels[index]


class OnPillow(OnTensors):
    """The same with Pillow for padding, cropping and mirroring, which is how torchvision's examples do it."""

    def __init__(self, images: data.ImageSet) -> None:
        super().__init__(images)
        self.pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in self.images]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pad, size = self.info.pad, self.info.size
        row, column, mirror = torch.randint(0, 2 * pad + 1, (3,)).tolist()
        picture = ImageOps.expand(self.pictures[index], pad).crop((column, row, column + size, row + size))
        picture = ImageOps.mirror(picture) if mirror % 2 else picture
        image = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(size, size, 3)
        image = image.permute(2, 0, 1).float().div_(255)
        return image.sub_(self.mean).div_(self.std), self.labels[index]


def noise() -> data.ImageSet:
    info = data.info("cifar10")
    return data.ImageSet(
        info=info,
        images=torch.randint(0, 256, (info.train, 3, 32, 32), dtype=torch.uint8),
        labels=torch.randint(0, 10, (info.train,)),
        classes=tuple("0123456789"),
    )


def consume(batches: object) -> Callable[[], None]:
    def run() -> None:
        for _ in batches:  # type: ignore[attr-defined]
            pass

    return run


def main() -> None:
    torch.set_num_threads(1)
    images = noise()
    contenders = {
        "regrow.data": consume(data.Batches(images, BATCH)),
        "regrow.data, channels_last": consume(data.Batches(images, BATCH, channels_last=True)),
        "regrow.data, no augmentation": consume(data.Batches(images, BATCH, augment=False)),
        "DataLoader, per-sample tensors": consume(DataLoader(OnTensors(images), BATCH, shuffle=True)),
        "DataLoader, per-sample Pillow": consume(DataLoader(OnPillow(images), BATCH, shuffle=True)),
    }
    seconds = interleave(contenders, rounds=ROUNDS, warmup=0)
    ours = seconds["regrow.data"]
    rows = [
        {
            "pipeline": name,
            "seconds per epoch": took,
            "images/s": len(images) / took,
            "time / regrow.data": took / ours,
        }
        for name, took in seconds.items()
    ]
    report(f"One epoch of {len(images):,} images of 3x32x32, batches of {BATCH}", rows, name="data")


if __name__ == "__main__":
    main()
