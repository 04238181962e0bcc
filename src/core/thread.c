/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the library's own. Signals of the process are the business of its own threads, also of one that
 * waits for them later with all others blocked; signals of a fault are the thread's that made it. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "core/core.h"

#include <signal.h>
#include <string.h>

enum tern_status terni_thread_open(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t blocked, before;
    int error;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&blocked, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    error = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "no thread %s: %s", name, strerror(error));
    }
    pthread_setname_np(*thread, name);
    return TERN_OK;
}
