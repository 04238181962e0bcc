# SPDX-License-Identifier: Apache-2.0
"""What the steps of a call cost each: python -m tern.host_cost --parts.

A step is run often in a row, in rounds; the table has the best and the median round. Steps of
torch's own stand beside those of the package that use them.
"""

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Callable, Dict, List

from . import _tern, tensors

if TYPE_CHECKING:
    from .ep import EP

UNITS = {"op": "", "best": "ns", "median": "ns"}
NOTES = {"parts": "of such calls, beside what torch has for the same; best and median round"}
_ROUNDS, _CALLS = 15, 300


def _steps(ep: "EP", route: Any, x: Any, ids: Any, weights: Any) -> Dict[str, Callable[[], Any]]:
    """Steps by name; operations are left out of their calls."""
    import torch

    comm, raw = ep.comm, ep.comm.raw
    shape, flat, kind = tuple(x.shape), tensors.dense(x.shape), x.dtype
    fast, slow = comm.fast_empty(), tensors.maker(None, comm.device, shape, flat, kind)
    steps: Dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "stream": comm.stream,
        "which tensors are made, fast_empty": comm.fast_empty,
        "tensor: torch.empty": lambda: torch.empty(shape, dtype=kind, device=comm.device),
        "tensor: torch.empty_like": slow,
        "tensor: new_empty": lambda: x.new_empty(shape),
        "tensor: a view of its own, as_strided": lambda: x.as_strided(shape, flat),
        "tensor: as another type, view": lambda: x.view(torch.int16),
    }
    if fast is not None:
        made = tensors.maker(fast, comm.device, shape, flat, kind)
        steps["tensor: fast_empty"] = made
        steps["four tensors: fast_empty"] = lambda: (made(), made(), made(), made())
    steps["four tensors: torch.empty_like"] = lambda: (slow(), slow(), slow(), slow())
    view = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    if hasattr(view, "_reinterpret_tensor"):
        steps["tensor: torch's _reinterpret_tensor"] = lambda: view._reinterpret_tensor(
            x, shape, flat, 0
        )
    place, index = comm.place
    stream, taker = comm.stream(), tensors.taker()
    steps["window memory: taken and given back"] = lambda: raw.alloc(
        0, shape, 4, 16, place, index, stream
    )
    steps["window memory: as a tensor"] = lambda: taker(
        raw.alloc(0, shape, 4, 16, place, index, stream)
    )
    outputs = [((x.shape[1],), kind), ((2,), torch.int64), ((2,), torch.float32)]
    shapes, views = tensors.row_shapes(comm, outputs)
    steps["three outputs in window memory: taken"] = lambda: raw.alloc_rows(stream, 8, shapes)
    steps["three outputs in window memory: as tensors"] = lambda: tensors.windows(
        comm, 8, shapes, views
    )
    steps["check: of a tensor, in words"] = lambda: tensors.check(
        comm, "x", x, ("bfloat16",), ("tokens", "hidden")
    )
    steps["check: shape and type, as a key"] = lambda: hash(
        (x.shape, x.dtype, ids.shape, ids.dtype)
    )
    steps["check: device"] = lambda: x.device == comm.device
    steps["check: is_contiguous"] = x.is_contiguous
    steps["check: gradients"] = lambda: torch.is_grad_enabled() and x.requires_grad
    steps["check: torch.compile"] = tensors.is_compiling
    steps["data_ptr"] = x.data_ptr
    given = (x.data_ptr(), weights.data_ptr(), x.data_ptr(), None, 0, None)
    steps["C: ll_combine"] = lambda: ep.raw.ll_combine(stream, 0, 0, *given)
    steps["C: synchronize, on the cpu machine"] = ep.settle
    return steps


def table(ep: "EP", route: Any, x: Any, ids: Any, weights: Any) -> List[Dict[str, Any]]:
    """A row a step, in ns. Operations are left out (tern._tern.measure)."""
    _tern.measure(2)
    rows = []
    for name, step in _steps(ep, route, x, ids, weights).items():
        taken = []
        for _ in range(_ROUNDS):
            begin = perf_counter_ns()
            for _ in range(_CALLS):
                step()
            taken.append((perf_counter_ns() - begin) / _CALLS)
        taken.sort()
        rows.append({"op": name, "best": taken[0], "median": taken[_ROUNDS // 2]})
    return rows
