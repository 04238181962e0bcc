# SPDX-License-Identifier: Apache-2.0
"""Times of functions: by events on a GPU, by the clock without one."""

import time
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

_L2_BYTES = 2**28  # more than any has

# Kernels of DeepEP: a word of those of Tern that do their work, and whether a call's count together.
_OURS = {
    "dispatch_impl": ("dispatch", True),
    "combine_impl": ("combine", True),
    "barrier": ("dispatch", False),
}
# Tern tells counts by a dispatch, and rows go where they belong at once.
_NEEDLESS = ("notify", "dispatch_copy_epilogue_impl", "combine_reduce_epilogue_impl")


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
    words, a tuple; of a word with several kernels a period, a list of them in order. Names of
    DeepEP's kernels stand for Tern's; those that Tern has no use for take NaN seconds.
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
    before: Any = None
    if barrier is not None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as before:
            barrier()
            torch.cuda.synchronize()
    found = tuple(_of(profile, word, num_kernels_per_period, num_tests, before) for word in words)
    return found[0] if isinstance(kernel_names, str) else found


def _named(profile: Any, word: str) -> List[Any]:
    """Kernels, in order."""
    events = [event for event in profile.events() if word in event.name]
    return sorted(events, key=lambda event: event.time_range.start)


def _of(
    profile: Any, name: str, period: int, num_tests: int, before: Any
) -> Union[float, List[float]]:
    """before: the profile of what comes before each call, if there is something."""
    if name in _NEEDLESS:
        return float("nan") if period == 1 else [float("nan")] * period
    word, is_summed = _OURS.get(name, (name, False))
    events = _named(profile, word)
    names = {event.name for event in events}
    assert names, f"no kernel has {word!r} in its name"
    times = [event.time_range.elapsed_us() / 1e6 for event in events]
    if is_summed:
        each, others = len(times) // num_tests, len(_named(before, word)) if before else 0
        assert each * num_tests == len(times), f"calls differ in their kernels with {word!r}"
        return sum(time for i, time in enumerate(times) if i % each >= others) / num_tests
    assert len(names) <= period, f"kernels of several names have {word!r} in them: {sorted(names)}"
    means = [sum(times[i::period]) / len(times[i::period]) for i in range(period)]
    return means[0] if period == 1 else means
