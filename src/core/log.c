/* SPDX-License-Identifier: Apache-2.0
 *
 * The log: messages at or below the level of TERN_LOG go to one sink of the process, by default a line
 * "tern: warn: text (file:line)" on standard error.
 *
 * The level is read from the environment at the first message and again by tern_log_set; in between a message
 * that is not wanted costs one relaxed load. The sink runs under the lock, so that after tern_log_set has
 * returned the old sink is not running and will not be called again: its `user` may be freed. */
#include "core/core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { level_unread = -1, text_bytes = 1200 };

static const char *const level_names[] = {"error", "warn", "info", "trace"};

/* The one process-wide setting of Tern (tern.h). lock protects sink and sink_user. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tern_log_function sink;
static void *sink_user;
static atomic_int level_in_force = level_unread;
static atomic_flag has_complained = ATOMIC_FLAG_INIT;

static void write_stderr(enum tern_log_level level, const char *file, int line, const char *text)
{
    fprintf(stderr, "tern: %s: %s (%s:%d)\n", level_names[level], text, file, line);
}

/* A word that is no level cannot be refused here, because logging has no caller to tell: it is said once in a
 * process, on standard error whatever the sink. */
static int read_level(void)
{
    const char *word = terni_env(TERN_ENV_LOG);
    for (int i = TERN_LOG_ERROR; i <= TERN_LOG_TRACE; i++) {
        if (strcmp(word, level_names[i]) == 0) {
            return i;
        }
    }
    if (!atomic_flag_test_and_set_explicit(&has_complained, memory_order_relaxed)) {
        fprintf(stderr, "tern: warn: TERN_LOG=%s is none of error, warn, info, trace: using warn\n", word);
    }
    return TERN_LOG_WARN;
}

void tern_log_set(tern_log_function function, void *user)
{
    int level = read_level();
    pthread_mutex_lock(&lock);
    sink = function;
    sink_user = user;
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&level_in_force, level, memory_order_relaxed);
}

void terni_log(enum tern_log_level level, const char *file, int line, const char *format, ...)
{
    char text[text_bytes];
    va_list args;
    /* Relaxed: the level guards nothing, a late change costs a message more or less. */
    int limit = atomic_load_explicit(&level_in_force, memory_order_relaxed);
    if (limit == level_unread) {
        limit = read_level();
        atomic_store_explicit(&level_in_force, limit, memory_order_relaxed);
    }
    if ((int)level > limit) {
        return;
    }
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    if (sink != NULL) {
        sink(level, file, line, text, sink_user);
    } else {
        write_stderr(level, file, line, text);
    }
    pthread_mutex_unlock(&lock);
}
