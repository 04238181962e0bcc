# SPDX-License-Identifier: Apache-2.0
"""Times of functions: by events on a GPU, by the clock without one."""

import time
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

_L2_BYTES = 2**28  # more than any has


def flush_l2_cache() -> None:
    """Puts other things into the cache of the GPU."""
    if torch.cuda.is_available():
        torch.empty(_L2_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


def bench(
    fn: Callable[[], Any],
    num_warmups: int = 50,
    num_tests: int = 50,
    post_fn: Optional[Callable[[], Any]] = None,
    flush_l2: bool = True,
) -> Tuple[float, float, float]:
    """(mean, least, most) seconds of a call; the first one that is measured does not count."""
    assert num_tests > 1, f"{num_tests} tests: the first is dropped, so there must be two"
    on_gpu = torch.cuda.is_available()
    for _ in range(num_warmups):
        fn()
    if flush_l2:
        flush_l2_cache()
    marks: List[Tuple[Any, Any]] = []
    for _ in range(num_tests):
        begin = _mark(on_gpu)
        fn()
        marks.append((begin, _mark(on_gpu)))
        if post_fn is not None:
            post_fn()
    if on_gpu:
        torch.cuda.synchronize()
        times = [begin.elapsed_time(end) / 1e3 for begin, end in marks[1:]]
    else:
        times = [end - begin for begin, end in marks[1:]]
    return sum(times) / len(times), min(times), max(times)


def _mark(on_gpu: bool) -> Any:
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: Union[str, Sequence[str]],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: Optional[str] = None,
    flush_l2: bool = True,
    barrier_comm_profiling: bool = False,
    num_kernels_per_period: int = 1,
    barrier: Optional[Callable[[], Any]] = None,
) -> Any:
    """Mean seconds of the kernels whose names contain a word, by torch's profiler; of several
    words, a tuple; of a word with several kernels a period, a list of them in order.
    suppress_kineto_output: taken and not needed. On a machine without GPUs there are no kernels to
    see."""
    if not torch.cuda.is_available():
        raise RuntimeError("bench_kineto measures kernels of a GPU, and there is none")
    words = (kernel_names,) if isinstance(kernel_names, str) else tuple(kernel_names)
    fn()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(num_tests):
            if flush_l2:
                flush_l2_cache()
            if barrier is not None:
                barrier()
            elif barrier_comm_profiling:
                dist.all_reduce(torch.ones(1, dtype=torch.float, device="cuda"))
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profile.export_chrome_trace(trace_path)
    found = tuple(_of(profile, word, num_kernels_per_period) for word in words)
    return found[0] if isinstance(kernel_names, str) else found


def _of(profile: Any, word: str, period: int) -> Union[float, List[float]]:
    events = [event for event in profile.events() if word in event.name]
    names = {event.name for event in events}
    assert names, f"no kernel has {word!r} in its name"
    assert len(names) <= period, f"kernels of several names have {word!r} in them: {sorted(names)}"
    events.sort(key=lambda event: event.time_range.start)
    times = [event.time_range.elapsed_us() / 1e6 for event in events]
    means = [sum(times[i::period]) / len(times[i::period]) for i in range(period)]
    return means[0] if period == 1 else means
