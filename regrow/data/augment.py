"""Crop, mirror and normalise whole batches at once, an order of magnitude faster than image by image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regrow.data.catalog import Info
from regrow.data.draws import Words, below, coins


def crop_and_flip(images: Tensor, draws: Words, *, pad: int, flip: bool) -> Tensor:
    """Mirror every second image if `flip`, and shift each by up to `pad` pixels over a black border.

    `images` is (B, C, H, W); `draws` has one word per image, which alone decides what happens to it.
    """
    if flip:
        chosen = torch.from_numpy(np.flatnonzero(coins(draws))).to(images.device)
        images = images.index_copy(0, chosen, images.index_select(0, chosen).flip(3))
    if pad:
        rows = torch.from_numpy(below(draws, 2 * pad + 1)).to(images.device)
        columns = torch.from_numpy(below(draws, 2 * pad + 1, shift=24)).to(images.device)
        images = _crop(F.pad(images, (pad, pad, pad, pad)), rows, columns, images.shape)
    return images


def _crop(padded: Tensor, rows: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
    """Cut the window of `shape` that starts at (row, column) out of each padded image.

    A line of a window is a run of bytes in the padded batch, so all lines are one `index_select` from the
    view of every such run: lines are copied whole, several times faster than indexing by three tensors.
    """
    count, channels, height, width = shape
    device = padded.device
    planes = torch.arange(count * channels, device=device).view(count, channels, 1)
    lines = planes * padded.shape[2] + rows.view(-1, 1, 1) + torch.arange(height, device=device)
    starts = lines * padded.shape[3] + columns.view(-1, 1, 1)
    return padded.reshape(-1).unfold(0, width, 1).index_select(0, starts.view(-1)).view(shape)


class Normalise:
    """Turns uint8 images into floating point with mean 0 and standard deviation 1 per channel."""

    def __init__(self, info: Info, *, dtype: torch.dtype = torch.float32, channels_last: bool = False) -> None:
        std = torch.tensor(info.std).view(-1, 1, 1)
        self._scale = 1 / (255 * std)
        self._shift = -torch.tensor(info.mean).view(-1, 1, 1) / std
        self._dtype = dtype
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """Return the normalised copy of (B, C, H, W) uint8 `images`, computed in float32 and then rounded."""
        if self._scale.device != images.device:
            self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        values = images.to(torch.float32).mul_(self._scale).add_(self._shift)
        return values.to(self._dtype).contiguous(memory_format=self._format)
