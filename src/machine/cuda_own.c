/* SPDX-License-Identifier: Apache-2.0
 *
 * The stream of a device for short work of the library, one for all ranks of the process there. GPUs have 32
 * hardware queues at most, and streams that share one wait for each other: sixteen ranks on a GPU could have
 * no queue each for their operations if every one had another stream besides. Nothing on it waits for a peer.
 */
#include "machine/cuda_machine.h"

#include <stdlib.h>

struct own {
    int device, num_users;
    cudaStream_t stream;
    struct own *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct own *owns;

static struct own **place_of(int device)
{
    struct own **at = &owns;

    while (*at && (*at)->device != device) {
        at = &(*at)->next;
    }
    return at;
}

static enum tern_status add(int device, struct own **at)
{
    struct own *own = (struct own *)calloc(1, sizeof(*own));
    enum tern_status status;

    if (!own) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no host memory for a stream");
    }
    own->device = device;
    status = TERN_CUDA_STATUS(cudaStreamCreateWithFlags(&own->stream, cudaStreamNonBlocking),
                              "cudaStreamCreateWithFlags on device %d", device);
    if (status != TERN_OK) {
        free(own);
        return status;
    }
    *at = own;
    return TERN_OK;
}

enum tern_status terni_cuda_own_take(int device, cudaStream_t *stream)
{
    struct own **at;
    enum tern_status status = TERN_OK;

    pthread_mutex_lock(&lock);
    at = place_of(device);
    if (!*at) {
        status = add(device, at);
    }
    if (status == TERN_OK) {
        (*at)->num_users++;
        *stream = (*at)->stream;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void terni_cuda_own_give(int device)
{
    struct own **at, *own;

    pthread_mutex_lock(&lock);
    at = place_of(device);
    own = *at;
    if (own && --own->num_users == 0) {
        *at = own->next;
        TERN_CUDA_WARN(cudaStreamDestroy(own->stream), "cudaStreamDestroy");
        free(own);
    }
    pthread_mutex_unlock(&lock);
}
