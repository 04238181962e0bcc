# SPDX-License-Identifier: Apache-2.0
"""Tensors as Tern sees them: a pointer, a shape, strides, a type and a device.

What comes in is a torch tensor, or whatever torch can look at without a copy (arrays of numpy,
DLPack). What is wrong with one is said in a sentence that has what it is beside what it must be.
"""

from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from .errors import BadState, InvalidArgument, OutOfMemory, Unsupported

if TYPE_CHECKING:
    import torch

    from .communicator import Communicator

Tensor = Any  # a torch.Tensor, or what torch can look at
RowsPointer = Tuple[int, int, int, int, int]  # struct tern_rows

# Codes and bits of DLPack. Types of 8-bit floats are younger than torch 1.13 and than DLPack's
# words for them: they travel as bytes.
_TYPES = {
    "bfloat16": (4, 16),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "uint8": (1, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
}
IDS = ("int64", "int32")
_has_operators: Optional[bool] = None  # whether torch has custom_op, once somebody asked
_NAMES: Dict[Any, str] = {}  # of torch's types, each from its first use on
_KINDS: Dict[Any, Tuple[int, int, bool]] = {}  # likewise: code, bits, whether DLPack has the type
_TAKERS: List[Callable[[Any], "torch.Tensor"]] = []  # torch's function for capsules, when known


def refuse(sentence: str) -> NoReturn:
    raise InvalidArgument(sentence)


def capturing(comm: "Communicator") -> bool:
    """Whether what is issued now goes into a CUDA graph."""
    return comm.machine == "cuda" and comm.torch.cuda.is_current_stream_capturing()


def number(name: str, value: Any, low: int, high: int) -> int:
    """An integer from low to high."""
    if (
        isinstance(value, bool)
        or not hasattr(value, "__index__")
        or not low <= value.__index__() <= high
    ):
        refuse(f"{name} is {value!r}: it must be a number from {low} to {high}")
    return value.__index__()


def choice(name: str, value: Any, words: Sequence[Optional[str]]) -> int:
    """The place of a word among words, which are in the order of an enumeration of tern.h."""
    if value not in words:
        refuse(f"{name} is {value!r}: it must be one of {', '.join(map(repr, words))}")
    return words.index(value)


def type_name(tensor: "torch.Tensor") -> str:
    return _name(tensor.dtype)


def _name(dtype: "torch.dtype") -> str:
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = str(dtype).rpartition(".")[2]
    return name


def describe(tensor: "torch.Tensor") -> str:
    text = f"{type_name(tensor)} {list(tensor.shape)} on {tensor.device}"
    return text if tensor.is_contiguous() else f"{text} with strides {list(tensor.stride())}"


def look(name: str, value: Tensor) -> "torch.Tensor":
    """value as a torch tensor, without a copy."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "__array_interface__"):
        return torch.from_numpy(value)
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    refuse(f"{name} is a {type(value).__name__}: it must be a tensor")


def check(
    comm: "Communicator",
    name: str,
    value: Tensor,
    types: Sequence[str],
    shape: Sequence[Union[int, str]],
    dense: bool = True,
) -> "torch.Tensor":
    """value as a torch tensor of one of the types, on the communicator's device, of the shape, in
    which a word stands for any length. dense: rows lie one after the other; else they may have
    strides."""
    tensor = value if type(value) is comm.torch.Tensor else look(name, value)
    if (
        (_NAMES.get(tensor.dtype) or _name(tensor.dtype)) in types
        and tensor.device == comm.device
        and (tensor.shape == shape or _fits(tensor.shape, shape))
        and (not dense or tensor.is_contiguous())
    ):
        return tensor
    wanted = f"{' or '.join(types)} [{', '.join(map(str, shape))}] on {comm.device}"
    refuse(f"{name} is {describe(tensor)}: it must be {wanted}{', dense' if dense else ''}")


def check_row(
    name: str, tensor: "torch.Tensor", row_bytes: int, step: int, total: int, most: int
) -> None:
    """A matrix's rows have row_bytes, a multiple of step, and total with all that travels with
    them, for which the EP object has room up to most."""
    if row_bytes % step != 0:
        refuse(
            f"{name} is {describe(tensor)}: a row has {row_bytes} bytes, and must have a multiple "
            f"of {step}"
        )
    if total > most:
        refuse(
            f"{name} is {describe(tensor)}: a row has {total} bytes with all that goes with it, "
            f"and the EP object has room for {most} (2 * hidden, or max_row_bytes)"
        )


def check_channels(name: str, tensor: "torch.Tensor") -> None:
    """A matrix's rows lie in one piece each."""
    if tensor.shape[1] > 1 and tensor.numel() > 0 and tensor.stride(1) != 1:
        refuse(
            f"{name} is {describe(tensor)}: a token's channels must lie side by side; give "
            f"{name}.contiguous()"
        )


def _fits(have: Sequence[int], shape: Sequence[Union[int, str]]) -> bool:
    if len(have) != len(shape):
        return False
    for length, want in zip(have, shape):
        if length != want and want.__class__ is not str:
            return False
    return True


def lies_well(tensor: "torch.Tensor", device: "torch.device") -> bool:
    """Dense, on the device."""
    return tensor.is_contiguous() and tensor.device == device


def is_compiling() -> bool:
    """Whether torch.compile is looking, in a torch that has operators to show it (2.4)."""
    global _has_operators
    import torch

    if _has_operators is None:
        _has_operators = hasattr(torch.library, "custom_op")
    return _has_operators and torch.compiler.is_compiling()


def target(
    comm: "Communicator",
    name: str,
    value: Tensor,
    types: Sequence[str],
    shape: Sequence[Union[int, str]],
) -> "torch.Tensor":
    """The same for a tensor of the caller's that is written."""
    import torch

    tensor = check(comm, name, value, types, shape)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Unsupported(f"{name} requires a gradient, and what is written there would have none")
    return tensor


def wrote(*written: Optional["torch.Tensor"]) -> None:
    """Says to autograd that the tensors have changed, as it sees of torch's own operations: a
    backward pass that saved one fails. None of them requires a gradient where gradients are on
    (target); no backward pass has saved one of inference mode, which counts no changes."""
    for tensor in written:
        if tensor is not None and not tensor.is_inference():
            tensor.copy_(tensor)  # moves nothing: torch sees that it is itself


def spread(tensor: "torch.Tensor") -> "torch.Tensor":
    """The tensor, or a dense copy if several of its elements share a place, as those of expand()
    do: a stride of 0 is the default one to struct tern_rows."""
    if tensor.is_contiguous():
        return tensor
    shared = any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride()))
    return tensor.contiguous() if shared else tensor


def rows_of(tensor: "torch.Tensor") -> RowsPointer:
    """A matrix as struct tern_rows: one piece a row where that is how it lies. Of spread(). Without
    its pointer, which is another in every call."""
    num, columns = tensor.shape
    size = tensor.element_size()
    row_bytes = columns * size
    if tensor.is_contiguous():
        return 0, row_bytes, row_bytes, row_bytes, row_bytes
    row_stride, elem_stride = tensor.stride(0) * size, tensor.stride(1) * size
    if num < 2:  # torch may say anything then
        row_stride = row_bytes
    if elem_stride == size or columns == 1:
        return 0, row_bytes, row_bytes, row_stride, row_bytes
    return 0, row_bytes, size, row_stride, elem_stride


def pointer(tensor: Optional["torch.Tensor"]) -> Optional[int]:
    return None if tensor is None else tensor.data_ptr()


def fast_empty(device: "torch.device") -> Optional[Callable[..., "torch.Tensor"]]:
    """What the programs of torch's compiler make their tensors with, of a shape, strides and a
    type, on the current device of a kind: half as costly as torch.empty. None: this torch (before
    2.2) has none."""
    import torch

    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, f"_empty_strided_{device.type}", None)


def part_of(
    block: "torch.Tensor", shape: Tuple[int, ...], first: int, dtype: "torch.dtype"
) -> "torch.Tensor":
    """A dense tensor of the memory of a new, flat one, from its element `first` on, counted in
    dtype: what the programs of torch's compiler make of their tensors, or else a view."""
    import torch

    if dtype != block.dtype:
        block = block.view(dtype)
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    short = getattr(guards, "_reinterpret_tensor", None)
    return (short or torch.as_strided)(block, shape, dense(shape), first)


def dense(shape: Sequence[int]) -> Tuple[int, ...]:
    """The strides of a tensor whose elements lie one after the other."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def maker(
    fast: Optional[Callable[..., "torch.Tensor"]],
    device: "torch.device",
    shape: Tuple[int, ...],
    strides: Tuple[int, ...],
    dtype: "torch.dtype",
) -> Callable[[], "torch.Tensor"]:
    """A function that makes tensors that are all alike, contents undefined."""
    import torch

    if fast is not None:
        return partial(fast, shape, strides, dtype)
    # Strides that only say in which order dimensions lie: torch makes it dense. Cheaper than a
    # shape, strides and a type.
    order = sorted(set(strides))
    steps = [1 + order.index(step) for step in strides]
    room = 1 + sum(max(length - 1, 0) * step for length, step in zip(shape, steps))
    like = torch.empty(room, dtype=dtype, device=device).as_strided(shape, steps)
    return partial(torch.empty_like, like)


def matrix(comm: "Communicator", like: "torch.Tensor", rows: int, columns: int) -> "torch.Tensor":
    """A new one of torch's memory, on the communicator's device as `like` is, of its type."""
    fast = comm.fast_empty()
    if fast is not None:
        return fast((rows, columns), (columns, 1), like.dtype)
    return like.new_empty((rows, columns))


def window(comm: "Communicator", shape: Sequence[int], dtype: "torch.dtype") -> "torch.Tensor":
    """A new tensor in window memory, which peers address. Contents undefined. It holds the
    communicator."""
    if capturing(comm):
        raise BadState(
            f"a CUDA graph is being captured, to which window memory cannot belong ({tuple(shape)}): "
            "make it before"
        )
    code, bits, is_known = _KINDS.get(dtype) or _kind(dtype)
    place, index = comm.place
    try:
        capsule = comm.raw.alloc(0, tuple(shape), code, bits, place, index, comm.stream())
    except OutOfMemory as error:
        raise _in_python(error)
    tensor = taker()(capsule)
    return tensor if is_known else tensor.view(dtype)


def _in_python(error: OutOfMemory) -> OutOfMemory:
    """The same exception, which names Python's call for more window memory."""
    told = str(error).replace("tern_heap_grow can add", "comm.grow() on every rank can add")
    error.args = (told.replace("tern_heap_grow", "comm.grow()"),)
    return error


def graph_memory(comm: "Communicator") -> Callable[..., "torch.Tensor"]:
    """What makes the outputs of a call in a CUDA graph: torch, whose memory lives as long as the
    graph. Window memory is another's when its tensor is gone, while the graph still writes it."""
    return lambda shape, dtype: comm.torch.empty(shape, dtype=dtype, device=comm.device)


def row_shapes(
    comm: "Communicator", outputs: Sequence[Tuple[Tuple[int, ...], "torch.dtype"]]
) -> Tuple[bytes, List[Optional["torch.dtype"]]]:
    """Outputs, as the shape of a row and its type, for windows: what the extension needs of them,
    and the types that DLPack has no word for."""
    place, index = comm.place
    kinds = [_KINDS.get(dtype) or _kind(dtype) for _, dtype in outputs]
    shapes = comm.raw.row_shapes(
        *(
            (columns, code, bits, place, index)
            for (columns, _), (code, bits, _) in zip(outputs, kinds)
        )
    )
    return shapes, [
        None if is_known else dtype for (_, dtype), (_, _, is_known) in zip(outputs, kinds)
    ]


def windows(
    comm: "Communicator", rows: int, shapes: bytes, views: Sequence[Optional["torch.dtype"]]
) -> List["torch.Tensor"]:
    """The outputs of a call, of so many rows, in window memory."""
    try:
        capsules = comm.raw.alloc_rows(comm.stream(), rows, shapes)
    except OutOfMemory as error:
        raise _in_python(error)
    made = list(map(taker(), capsules))
    for i, dtype in enumerate(views):
        if dtype is not None:
            made[i] = made[i].view(dtype)
    return made


def _kind(dtype: "torch.dtype") -> Tuple[int, int, bool]:
    import torch

    name = _name(dtype)
    code, bits = _TYPES.get(name, (1, 8 * torch.empty(0, dtype=dtype).element_size()))
    _KINDS[dtype] = (code, bits, name in _TYPES)
    return _KINDS[dtype]


def taker() -> Callable[[Any], "torch.Tensor"]:
    """torch's function that makes a DLPack capsule a tensor."""
    if not _TAKERS:
        import torch
        from torch.utils.dlpack import from_dlpack  # looks at much more than capsules

        _TAKERS.append(getattr(torch._C, "_from_dlpack", from_dlpack))
    return _TAKERS[0]
