/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks ranks, hands out the id, collects exit statuses. */
#include "procs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void nap(void)
{
    struct timespec t = {0, 2000000};

    nanosleep(&t, NULL);
}

static int get_id(int rank, struct procs_page *page, double deadline)
{
    if (rank == 0) {
        OK(tern_id_create(NULL, &page->id));
        __atomic_store_n(&page->has_id, 1,
                         __ATOMIC_RELEASE); /* pairs with the acquire below: the id is whole */
        return 0;
    }
    while (!__atomic_load_n(&page->has_id, __ATOMIC_ACQUIRE)) {
        CHECK(test_seconds() < deadline, "rank %d: rank 0 made no id", rank);
        nap();
    }
    return 0;
}

static pid_t start(int rank, struct procs_page *page, double deadline,
                   int (*body)(int rank, struct procs_page *page, void *user), void *user)
{
    pid_t pid = fork();

    if (pid == 0) {
        int result = get_id(rank, page, deadline);
        result = result ? result : body(rank, page, user);
        fflush(stdout);
        _exit(result ? 1 : 0);
    }
    return pid;
}

/* What the process ended with, or -1 if it had to be killed. */
static int collect(pid_t pid, double deadline)
{
    int status = 0;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (test_seconds() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nap();
    }
    return status;
}

int procs_run(int num_ranks, int victim, double seconds,
              int (*body)(int rank, struct procs_page *page, void *user), void *user)
{
    double deadline = test_seconds() + seconds;
    struct procs_page *page = (struct procs_page *)mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE,
                                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *pids;
    int r, result = 0;

    CHECK(page != MAP_FAILED, "no page to share");
    pids = (pid_t *)test_take((size_t)num_ranks, sizeof *pids);
    fflush(stdout);
    for (r = 0; r < num_ranks; r++) {
        pids[r] = start(r, page, deadline, body, user);
    }
    for (r = 0; r < num_ranks; r++) {
        int status = pids[r] < 0 ? -1 : collect(pids[r], deadline);
        int good = r == victim ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (status == -1 || !good) {
            test_note(__FILE__, __LINE__, "rank %d of %d processes: %s (wait status 0x%x)", r, num_ranks,
                      status == -1 ? "did not end in time" : "ended badly", (unsigned)status);
            result = TEST_FAILED;
        }
    }
    free(pids);
    munmap(page, sizeof *page);
    return result;
}
