/* SPDX-License-Identifier: Apache-2.0
 *
 * What machine_mock.c never calls of the cuda machine, but its table of operations names. */
#include <stdlib.h>

#define ABSENT(name)                                                                                         \
    void name(void);                                                                                         \
    void name(void) { abort(); }

ABSENT(terni_cuda_share_reserve)
ABSENT(terni_cuda_share_add)
ABSENT(terni_cuda_share_import)
ABSENT(terni_cuda_share_trim)
ABSENT(terni_cuda_share_free)
ABSENT(terni_cuda_share_lend)
ABSENT(terni_cuda_peer_enable)
ABSENT(terni_cuda_lacks_atomics)
ABSENT(terni_cuda_io_map)
ABSENT(terni_cuda_io_unmap)
ABSENT(terni_cuda_dmabuf)
ABSENT(terni_cuda_event_open)
ABSENT(terni_cuda_event_close)
ABSENT(terni_cuda_event_record)
ABSENT(terni_cuda_event_wait)
ABSENT(terni_cuda_event_synchronize)
ABSENT(terni_cuda_event_elapsed)
ABSENT(terni_cuda_graph_begin)
ABSENT(terni_cuda_graph_end)
ABSENT(terni_cuda_graph_launch)
ABSENT(terni_cuda_graph_close)
ABSENT(cudaMalloc)
ABSENT(cudaFree)
ABSENT(cudaHostAlloc)
ABSENT(cudaFreeHost)
ABSENT(cudaHostGetDevicePointer)
ABSENT(cudaMemGetInfo)
ABSENT(cudaMemcpyAsync)
ABSENT(cudaMemsetAsync)
ABSENT(cudaEventQuery)
ABSENT(cudaEventRecord)
ABSENT(cudaStreamGetCaptureInfo)
ABSENT(cudaStreamGetCaptureInfo_v2)
