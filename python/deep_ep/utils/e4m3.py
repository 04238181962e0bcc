# SPDX-License-Identifier: Apache-2.0
"""FP8 (E4M3) for every torch: its own type where it has that, else bytes and a table."""

import torch

dtype = getattr(torch, "float8_e4m3fn", torch.uint8)
HIGHEST = 448.0


def _values() -> torch.Tensor:
    """Of the 127 codes without a sign that are numbers."""
    codes = torch.arange(127)
    exponent, mantissa = (codes >> 3).double(), (codes & 7).double() / 8
    small = mantissa * 2.0**-6
    return torch.where(exponent == 0, small, (1 + mantissa) * 2.0 ** (exponent - 7)).float()


def encode(values: torch.Tensor) -> torch.Tensor:
    """FP32 as E4M3: the nearest, the even one of two, at most 448."""
    values = values.float().clamp(-HIGHEST, HIGHEST)
    if dtype != torch.uint8:
        return values.to(dtype)
    size = values.abs()
    exponent = (torch.frexp(size)[1] - 1).clamp(min=-6)
    step = 2.0 ** (exponent - 3).float()
    near = torch.round(size / step) * step
    codes = torch.searchsorted(_values().to(values.device), near.contiguous())
    return (codes + 128 * torch.signbit(values)).to(torch.uint8)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """E4M3, as bytes or of torch's type, as FP32."""
    if codes.dtype != torch.uint8:
        return codes.float()
    table = torch.cat([_values(), torch.full((1,), float("nan"))]).to(codes.device)
    size = table[(codes & 127).long()]
    return torch.where(codes >= 128, -size, size)
