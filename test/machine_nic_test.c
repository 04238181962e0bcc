/* SPDX-License-Identifier: Apache-2.0
 *
 * What machines offer to NICs: registers mapped for kernels, dma-bufs, and where a device is on PCIe. On a
 * GPU each may be refused by the driver, but never half: a refusal has a sentence and leaves nothing. */
#include "machine/machine.h"
#include "support.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_fds(void)
{
    int num = 0;
    for (int fd = 0; fd < 1024; fd++) {
        num += fcntl(fd, F_GETFD) >= 0;
    }
    return num;
}

static int cpu_lends_addresses(struct test *t)
{
    struct executor *x;
    struct machine *m;
    static char page[4096];
    void *device = NULL;
    uint64_t offset;
    int fd;
    (void)t;
    OK(terni_executor_open(1, &x));
    OK(terni_cpu_open(x, &m));
    terni_executor_release(x);
    OK(m->ops->io_map(m, page, sizeof page, &device));
    CHECK(device == page, "registers at %p are %p for kernels", (void *)page, device);
    m->ops->io_unmap(m, page);
    REFUSES(m->ops->dmabuf(m, page, sizeof page, &fd, &offset), TERN_UNSUPPORTED, "memory of the host");
    CHECK(m->info.pci[0] == '\0' && m->info.nic_writes_ordered, "the cpu machine is at \"%s\"", m->info.pci);
    m->ops->close(m);
    return TEST_PASSED;
}

static int check_dmabuf(struct test *t, struct machine *m, char *memory, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t offset = ~0ull;
    int before = open_fds(), fd = -1;
    enum tern_status status = m->ops->dmabuf(m, memory, bytes, &fd, &offset);
    if (status != TERN_OK) {
        CHECK(status == TERN_UNSUPPORTED && strstr(tern_last_error(), "cuMemGetHandleForAddressRange"), "%s",
              tern_last_error());
        CHECK(open_fds() == before, "a descriptor is left");
        test_detail(t, "no dma-buf: %.100s", tern_last_error());
        return TEST_PASSED;
    }
    CHECK(offset == (uint64_t)(uintptr_t)memory % page, "%llu bytes into it", (unsigned long long)offset);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "programs that this one starts keep it");
    close(fd);
    test_detail(t, "a dma-buf; writes of NICs are %s",
                m->info.nic_writes_ordered ? "ordered" : "not ordered");
    return TEST_PASSED;
}

static int gpu_dmabuf(struct test *t)
{
    enum { BYTES = 4 << 20 };
    struct machine *m;
    void *memory;
    int result;
    if (terni_cuda_device_count() == 0) {
        return test_skip(t, "there is no GPU here");
    }
    OK(terni_cuda_open(0, &m));
    CHECK(strlen(m->info.pci) == 12 && m->info.pci[4] == ':' && m->info.pci[10] == '.', "\"%s\"",
          m->info.pci);
    OK(m->ops->alloc(m, BYTES, &memory));
    result = check_dmabuf(t, m, (char *)memory + 100, BYTES / 2);
    m->ops->free(m, memory);
    m->ops->close(m);
    return result;
}

/* Memory of the host in place of registers: CUDA takes it as I/O memory, or says why not. */
static int gpu_registers(struct test *t)
{
    struct machine *m;
    void *page, *device = NULL;
    enum tern_status status;
    if (terni_cuda_device_count() == 0) {
        return test_skip(t, "there is no GPU here");
    }
    OK(terni_cuda_open(0, &m));
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED, "no page");
    for (int i = 0; i < 2; i++) { /* twice: a refusal, or an unmapping, leaves nothing */
        status = m->ops->io_map(m, page, 4096, &device);
        CHECK(status == TERN_OK ? device != NULL
                                : strstr(tern_last_error(), "4096 bytes of registers at") != NULL,
              "%s", tern_last_error());
        if (status == TERN_OK) {
            m->ops->io_unmap(m, page);
        }
    }
    test_detail(t, "%.120s", status == TERN_OK ? "mapped" : tern_last_error());
    munmap(page, 4096);
    m->ops->close(m);
    return TEST_PASSED;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    test_run(&t, "the cpu machine lends its addresses", cpu_lends_addresses);
    test_run(&t, "a GPU's memory as a dma-buf", gpu_dmabuf);
    test_run(&t, "registers for a GPU's kernels", gpu_registers);
    return test_end(&t);
}
