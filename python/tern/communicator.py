# SPDX-License-Identifier: Apache-2.0
"""Ranks that found each other, and the memory that they address in each other."""

import os
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

from . import _tern, tensors
from .closing import Closing
from .errors import BadState, Error

if TYPE_CHECKING:
    import torch

_MACHINES = ("auto", "cpu", "cuda")


def create_id(interface: Optional[str] = None) -> bytes:
    """An id whose root listens on this host, for rank 0, which carries it to the others. interface:
    a numeric address of this host that they can reach; default: TERN_INTERFACE, else 127.0.0.1."""
    return _tern.id_create(interface)


def id_from_address(address: str) -> bytes:
    """The id of "host:port/cookie", the same on every rank; rank 0 listens there."""
    return _tern.id_from_address(address)


class Communicator(Closing):
    """COLLECTIVE to make: every rank, with the same id. One thread may use it at a time.

    machine: "cpu" or "cuda"; default: TERN_MACHINE, else cuda if torch has it here. device: ordinal
    of a GPU; default: torch's current one. The others are the fields of struct tern_comm_config.

    It closes when the last of what was made with it is gone: EP objects, routes, tensors in window
    memory.
    """

    def __init__(
        self,
        id: bytes,
        rank: int,
        size: int,
        *,
        machine: Optional[str] = None,
        device: Optional[int] = None,
        heap_bytes: Optional[int] = None,
        heap_max_bytes: Optional[int] = None,
        timeout_ms: Optional[int] = None,
        cpu_seed: Optional[int] = None,
    ) -> None:
        import torch

        if machine is None:
            machine = os.environ.get("TERN_MACHINE", "") or "auto"
        if machine == "auto":
            machine = "cuda" if torch.cuda.is_available() else "cpu"
        wanted = tensors.choice("machine", machine, _MACHINES)
        if machine == "cuda":
            if device is None:
                device = torch.cuda.current_device()
            device = tensors.number("device", device, 0, 1023)
        elif device is not None:
            tensors.refuse(f"device is {device!r}: the cpu machine has none")
        self._raw: Optional[_tern.Comm] = _tern.Comm(
            id,
            rank,
            size,
            machine=wanted,
            device=None if device is None else device + 1,
            heap_bytes=heap_bytes,
            heap_max_bytes=heap_max_bytes,
            timeout_ms=timeout_ms,
            cpu_seed=cpu_seed,
        )
        self._describe(device)

    def _describe(self, device: Optional[int]) -> None:
        import torch

        self.rank: int = self.raw.rank
        self.size: int = self.raw.size
        self.machine: str = _MACHINES[self.raw.machine]
        self.device = torch.device("cpu") if self.machine == "cpu" else torch.device("cuda", device)
        self.num_sms: int = self.raw.num_sms
        # As DLPack says it: type and ordinal.
        self.place = (1, 0) if self.machine == "cpu" else (2, self.device.index)
        self._stream: Optional[int] = self.raw.stream if self.machine == "cpu" else None
        # What every operation asks for: the module, and short cuts, where this torch has them.
        self.torch: Any = torch
        self._fast_empty = tensors.fast_empty(self.device)
        self._current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

    @classmethod
    def from_torch(
        cls, group: Any = None, *, interface: Optional[str] = None, **options: Any
    ) -> "Communicator":
        """Of a torch.distributed process group, of any backend; default: the world."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        rank, size = dist.get_rank(group), dist.get_world_size(group)
        root = 0 if group is None else distributed_c10d.get_global_rank(group, 0)

        def broadcast(told: Any) -> Any:
            box = [told]
            dist.broadcast_object_list(box, src=root, group=group)
            return box[0]

        return cls(_agree(rank, interface, broadcast), rank, size, **options)

    @classmethod
    def from_mpi(
        cls, comm: Any, *, interface: Optional[str] = None, **options: Any
    ) -> "Communicator":
        """Of a communicator of mpi4py, or anything with its Get_rank, Get_size and bcast."""
        rank = comm.Get_rank()
        return cls(
            _agree(rank, interface, lambda told: comm.bcast(told, root=0)),
            rank,
            comm.Get_size(),
            **options,
        )

    @classmethod
    def from_environment(cls, **options: Any) -> "Communicator":
        """Of the processes that tern-run started: TERN_ID, TERN_RANK, TERN_NUM_RANKS."""
        id, rank, size = _tern.id_from_environment()
        return cls(id, rank, size, **options)

    @property
    def raw(self) -> "_tern.Comm":
        if self._raw is None:
            raise BadState("the communicator is closed")
        return self._raw

    def stream(self) -> int:
        """The stream of operations that are issued now: torch's current one; on the cpu machine its
        own."""
        if self._stream is not None:
            return self._stream
        if self.machine == "cpu":
            return self.raw.stream  # which says that it is closed
        if self._current_stream is not None:
            return self._current_stream(self.place[1])
        import torch

        return torch.cuda.current_stream(self.device).cuda_stream

    def fast_empty(self) -> Optional[Callable[..., "torch.Tensor"]]:
        """torch's short cut to new tensors (tensors.fast_empty), if it makes them on this device
        now."""
        if self._stream is not None or self._current_device() == self.place[1]:
            return self._fast_empty
        return None

    def empty(self, shape: Sequence[int], dtype: "torch.dtype") -> "torch.Tensor":
        """A tensor in window memory, contents undefined: outputs of dispatch and inputs of combine
        that are there are written and read by peers where they lie."""
        return tensors.window(self, shape, dtype)

    def barrier(self) -> None:
        """COLLECTIVE: returns when all ranks have called it."""
        self.raw.barrier()

    def allgather(self, mine: bytes) -> List[bytes]:
        """COLLECTIVE: every rank's bytes, whose number is the same on all, at most 1 MiB."""
        every = self.raw.allgather(mine)
        return [every[r * len(mine) : (r + 1) * len(mine)] for r in range(self.size)]

    def grow(self, num_bytes: int) -> None:
        """COLLECTIVE: adds window memory on every rank, within heap_max_bytes."""
        self.raw.grow(tensors.number("num_bytes", num_bytes, 0, 2**63))

    def shrink(
        self,
        *,
        timeout_ms: Optional[int] = None,
        min_ranks: Optional[int] = None,
        whole_domains: bool = False,
    ) -> Tuple[Optional["Communicator"], List[int]]:
        """COLLECTIVE over the ranks that are left after some were lost: a communicator of them, or
        None for a rank that whole_domains leaves out, and their numbers here. This one stays until
        it is closed."""
        raw, old = self.raw.shrink(
            timeout_ms=timeout_ms, min_ranks=min_ranks, whole_domains=whole_domains
        )
        if raw is None:
            return None, old
        made = Communicator.__new__(Communicator)
        made._raw = raw
        made._describe(self.device.index)
        return made, old

    def describe(self) -> str:
        """Machine, ranks, hosts and domains, as tern-info prints them."""
        return self.raw.describe()

    def close(self) -> None:
        """No more calls. What was made with the communicator keeps it open until it is gone,
        too."""
        self._raw = self._stream = None

    def __repr__(self) -> str:
        return f"<tern.Communicator rank {self.rank} of {self.size} on {self.device}>"


def _agree(rank: int, interface: Optional[str], broadcast: Any) -> bytes:
    """The id that rank 0 made. If it cannot, all ranks fail, instead of waiting for it."""
    told: Any = None
    if rank == 0:
        try:
            told = create_id(interface)
        except Error as error:
            told = error
    told = broadcast(told)
    if isinstance(told, Error):
        raise told
    return told
