# SPDX-License-Identifier: Apache-2.0
"""Figures: how far results are apart, FP8 by blocks of 128 channels, hashes."""

from typing import Any, Tuple

import torch

from . import e4m3


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


def safe_div(x: Any, y: Any) -> Any:
    """x / y, and 0 / 0 is 0."""
    return 0 if x == 0 and y == 0 else x / y


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far two results are apart: 0 if they are equal. Of the values + 1, so that results of
    zeros have a size."""
    if x.numel() == 0 and x.shape == y.shape:
        return 0.0
    x, y = x.double() + 1, y.double() + 1
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum())


def per_token_cast_to_fp8(x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """A matrix as E4M3, and FP32 scales of its blocks of 128 channels."""
    rows, columns = x.shape
    blocks = ceil_div(columns, 128)
    padded = torch.nn.functional.pad(x.float(), (0, blocks * 128 - columns))
    in_blocks = padded.view(rows, blocks, 128)
    highest = in_blocks.abs().amax(2, keepdim=True).clamp(min=1e-4)
    top = torch.full_like(highest, e4m3.HIGHEST)  # tensors divide exactly, numbers may not
    codes = e4m3.encode(in_blocks * (top / highest)).view(rows, blocks * 128)
    return codes[:, :columns].contiguous(), (highest / top).view(rows, blocks)


def per_token_cast_back(x_fp8: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The BF16 rows of what has been cast. Scales that are int32 have four exponents each."""
    rows, columns = x_fp8.shape
    if rows == 0:
        return torch.empty((0, columns), dtype=torch.bfloat16, device=x_fp8.device)
    if scales.dtype in (torch.int32, torch.int):
        exponents = scales.reshape(-1).view(torch.uint8).view(rows, -1).to(torch.int32)
        scales = (exponents << 23).view(torch.float32)
    wide = scales.reshape(rows, -1, 1).float().expand(-1, -1, 128).reshape(rows, -1)
    return (e4m3.decode(x_fp8) * wide[:, :columns]).bfloat16()


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Of each row, leaves the different numbers from 0 to num_slots - 1, the highest first, then
    -1."""
    assert x.dim() == 2, f"a {x.dim()}-dimensional tensor: it must be a matrix"
    mask = x < 0
    there = torch.zeros((x.shape[0], num_slots + 1), dtype=torch.bool, device=x.device)
    there.scatter_(1, x.long().masked_fill(mask, num_slots), True)
    there = there[:, :num_slots]
    numbers = torch.arange(num_slots, device=x.device).expand_as(there)
    kept = numbers.masked_fill(~there, -1).sort(1, descending=True).values
    x.fill_(-1)
    columns = min(num_slots, x.shape[1])
    x[:, :columns] = kept[:, :columns].to(x.dtype)


def create_grouped_scores(
    scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int
) -> torch.Tensor:
    """scores [tokens, experts] with those of all groups but the chosen ones [tokens, chosen] set to
    0."""
    tokens, experts = scores.shape
    mask = torch.zeros((tokens, num_groups), dtype=torch.bool, device=scores.device)
    mask.scatter_(1, group_idx, True)
    return (scores.view(tokens, num_groups, -1) * mask.unsqueeze(2)).view(tokens, experts)


def hash_tensor(tensor: torch.Tensor) -> int:
    """A number for its bits; the order of elements does not count."""
    raw = tensor.contiguous().view(-1)
    size = raw.element_size()
    whole = raw.numel() * size % 8 == 0 and raw.storage_offset() * size % 8 == 0
    words = raw.view(torch.int64 if whole else torch.uint8)
    return int(words.to(torch.int64).sum())


def hash_tensors(*values: Any) -> int:
    """Of tensors, and of tuples and lists of them, together; None has none."""
    total = 0
    for value in values:
        if isinstance(value, (tuple, list)):
            total ^= hash_tensors(*value)
        elif value is not None:
            total ^= hash_tensor(value)
    return total


def count_bytes(*values: Any) -> int:
    """Of tensors, and of tuples and lists of them; None has none."""
    total = 0
    for value in values:
        if isinstance(value, (tuple, list)):
            total += count_bytes(*value)
        elif value is not None:
            total += value.numel() * value.element_size()
    return total
