/* SPDX-License-Identifier: Apache-2.0
 *
 * What adopting mapped memory between processes does to the program's other files: nothing; and a process
 * without a descriptor left, which is told so. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "comm_scene.h"
#include "procs.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { window_bytes = 4096 };

/* Whether this process has, or now gets, the lock of the whole file. */
static int takes_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

static int map_memfd(int *fd, void **memory)
{
    *fd = memfd_create("user", MFD_CLOEXEC);
    CHECK(*fd >= 0 && ftruncate(*fd, window_bytes) == 0, "memfd_create: %m");
    *memory = mmap(NULL, window_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(*memory != MAP_FAILED, "mmap: %m");
    return 0;
}

/* Rank 1 locks a file that both have open. */
static int lock_body(int rank, struct procs_page *page, void *user)
{
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    void *memory;
    int file = *(const int *)user, fd;
    OK(tern_comm_open(&page->id, rank, 2, &config, &comm));
    PASS(map_memfd(&fd, &memory));
    CHECK(rank == 0 || takes_lock(file), "no lock: %m");
    OK(tern_comm_barrier(comm));
    CHECK(rank == 1 || !takes_lock(file), "rank 1's lock does not hold");
    OK(tern_window_adopt(comm, memory, window_bytes));
    CHECK(rank == 1 || !takes_lock(file), "rank 1's lock is gone");
    OK(tern_comm_barrier(comm));
    tern_comm_close(comm);
    return 0;
}

static int record_locks(struct test *t)
{
    FILE *stream = tmpfile();
    int file, result;
    (void)t;
    CHECK(stream != NULL, "tmpfile: %m");
    file = fileno(stream);
    result = procs_run(2, -1, 60, lock_body, &file);
    fclose(stream);
    return result;
}

/* With none left, and with one: to read what is mapped, and no second one to lend. */
static int poor_body(int rank, struct procs_page *page, void *user)
{
    static const char *const sentences[] = {"cannot look for the mapping", "cannot duplicate descriptor"};
    struct tern_comm_config config = config_of(20000);
    struct tern_comm *comm;
    struct share_loan loan;
    struct machine *m;
    void *memory;
    int num_left = *(const int *)user, fd;
    (void)rank, (void)page;
    OK(tern_comm_open_all(1, &config, &comm));
    m = comm->machine;
    PASS(map_memfd(&fd, &memory));
    PASS(leave_fds(num_left));
    if (num_left < 2) {
        REFUSES(m->ops->share_lend(m, memory, window_bytes, 1, &loan), TERN_SYSTEM_ERROR,
                "Too many open files");
        CHECK(strstr(tern_last_error(), sentences[num_left]) != NULL, "\"%s\"", tern_last_error());
        CHECK(loan.fd == -1, "descriptor %d", loan.fd);
    } else {
        OK(m->ops->share_lend(m, memory, window_bytes, 1, &loan));
        CHECK(loan.fd >= 0 && loan.fd != fd, "descriptor %d", loan.fd);
    }
    tern_comm_close(comm);
    return 0;
}

static int few_descriptors(struct test *t)
{
    (void)t;
    for (int num_left = 0; num_left < 3; num_left++) {
        PASS(procs_run(1, -1, 30, poor_body, &num_left));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct test t;
    test_begin(&t, argc, argv);
    test_quiet();
    setenv("TERN_MACHINE", "cpu", 1);
    test_run(&t, "record locks", record_locks);
    test_run(&t, "few descriptors", few_descriptors);
    return test_end(&t);
}
