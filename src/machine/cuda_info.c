/* SPDX-License-Identifier: Apache-2.0
 *
 * What there is: devices that can be used, their properties, versions. Silent where no driver is installed.
 */
#include "kernels/table_cuda.h"
#include "machine/cuda_machine.h"

#include <stdio.h>
#include <string.h>

/* Kernels are compiled for sm_80 and later: below it there is no relaxed or acquire load of system scope. */
enum { MIN_COMPUTE_CAPABILITY = 80 };

static int compute_capability(int ordinal)
{
    int major = 0, minor = 0;

    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return major * 10 + minor;
}

/* Devices before the first that is too old, so that every ordinal below the count can be used. CUDA lists the
 * fastest first, so an old card for the display comes last. */
int terni_cuda_device_count(void)
{
    int found = 0, usable = 0;

    if (cudaGetDeviceCount(&found) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    while (usable < found && compute_capability(usable) >= MIN_COMPUTE_CAPABILITY) {
        usable++;
    }
    return usable;
}

/* The kernel module's release, the first word of the form "digits.digits" in its version line: the CUDA
 * interface has no call for it. "?" where the file is hidden. */
static void driver_release(char *text, size_t text_bytes)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[256] = "", *word, *rest = line;

    snprintf(text, text_bytes, "?");
    if (!file) {
        return;
    }
    if (fgets(line, sizeof(line), file)) {
        while ((word = strtok_r(rest, " \t\n", &rest)) != NULL) {
            unsigned major, minor;

            if (sscanf(word, "%u.%u", &major, &minor) == 2) {
                snprintf(text, text_bytes, "%.11s", word);
                break;
            }
        }
    }
    fclose(file);
}

static void driver_text(char *text, size_t text_bytes)
{
    char release[12];
    int version = 0;

    driver_release(release, sizeof(release));
    if (cudaDriverGetVersion(&version) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    snprintf(text, text_bytes, "%.11s / CUDA %d.%d", release, version / 1000 % 100, version / 10 % 100);
}

/* Whether a kernel that sees a NIC's write sees the ones before it as well. */
static int nic_writes_ordered(int ordinal)
{
    int ordering = cudaGPUDirectRDMAWritesOrderingNone;

    if (cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return ordering >= cudaGPUDirectRDMAWritesOrderingOwner;
}

enum tern_status terni_cuda_info_get(int ordinal, struct machine_info *info)
{
    struct cudaDeviceProp p;
    int found = 0;

    memset(info, 0, sizeof(*info));
    TERN_TRY(TERN_CUDA_STATUS(cudaGetDeviceCount(&found), "cudaGetDeviceCount"));
    if (ordinal < 0 || ordinal >= found) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "there is no CUDA device %d: %d are visible", ordinal, found);
    }
    TERN_TRY(TERN_CUDA_STATUS(cudaGetDeviceProperties(&p, ordinal), "cudaGetDeviceProperties of device %d",
                              ordinal));
    info->kind = TERN_MACHINE_CUDA;
    info->device = ordinal;
    info->compute_capability = p.major * 10 + p.minor;
    snprintf(info->name, sizeof(info->name), "%.95s", p.name);
    driver_text(info->driver, sizeof(info->driver));
    memcpy(info->uuid, p.uuid.bytes, sizeof(info->uuid));
    info->num_sms = p.multiProcessorCount;
    info->max_shared_bytes = (uint32_t)p.sharedMemPerBlockOptin;
    info->has_bulk = info->compute_capability >= 90;
    info->memory_bytes = p.totalGlobalMem;
    snprintf(info->pci, sizeof(info->pci), "%04x:%02x:%02x.0", (unsigned)p.pciDomainID & 0xffffu,
             (unsigned)p.pciBusID & 0xffu, (unsigned)p.pciDeviceID & 0x1fu);
    info->nic_writes_ordered = nic_writes_ordered(ordinal);
    info->has_stamps = terni_cuda_stamps();
    if (info->compute_capability < MIN_COMPUTE_CAPABILITY) {
        return TERN_FAIL(TERN_UNSUPPORTED, "device %d (%s) has compute capability %d.%d; Tern needs 8.0",
                         ordinal, p.name, p.major, p.minor);
    }
    return TERN_OK;
}

const char *terni_cuda_describe(void)
{
    static _Thread_local char text[128];
    char driver[32];
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(text, sizeof(text), "built with CUDA %d.%d for sm_80 and sm_90; no driver or no device here",
                 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        return text;
    }
    driver_text(driver, sizeof(driver));
    snprintf(text, sizeof(text),
             "built with CUDA %d.%d for sm_80 and sm_90; driver %s, %d of %d devices usable",
             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver, terni_cuda_device_count(), devices);
    return text;
}
