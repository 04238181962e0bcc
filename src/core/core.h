/* SPDX-License-Identifier: Apache-2.0
 *
 * What every layer uses: status with a sentence, log, environment, host clock.
 * An error is decided in one place, which calls TERN_FAIL with the values; callers pass the status on. */
#ifndef TERN_CORE_H
#define TERN_CORE_H

#include "tern/tern.h"

#include <pthread.h>

#define TERN_PRINTF(a, b) __attribute__((format(printf, a, b)))

/* Stores the sentence for tern_last_error, logs it once at level INFO (the caller, who has the status,
 * decides whether it is news), returns `status`. `format` may contain %m if errno is the reason. */
enum tern_status terni_fail(const char *file, int line, enum tern_status status, const char *format, ...)
    TERN_PRINTF(4, 5);
#define TERN_FAIL(status, ...) terni_fail(__FILE__, __LINE__, (status), __VA_ARGS__)

/* Whether a number that somebody sent is a status of TERN_STATUS_LIST, and no success. */
int terni_status_is_failure(int32_t value);

enum { TERN_LAST_ERROR_BYTES = 1024 };

/* For what goes on after one of its steps has failed: the first failure, with its sentence, which later ones
 * may replace. It begins as {TERN_OK, ""}, and is one thread's. */
struct first_failure {
    enum tern_status status;
    char sentence[TERN_LAST_ERROR_BYTES];
};
void terni_first_add(struct first_failure *first, enum tern_status one);
/* After all that may fail, also what closes: the status, and its sentence is the last error again. */
enum tern_status terni_first_end(const struct first_failure *first);

/* Returns from the calling function; only where nothing needs undoing. */
#define TERN_TRY(call)                                                                                       \
    do {                                                                                                     \
        enum tern_status try_status_ = (call);                                                               \
        if (try_status_ != TERN_OK) {                                                                        \
            return try_status_;                                                                              \
        }                                                                                                    \
    } while (0)

void terni_log(enum tern_log_level level, const char *file, int line, const char *format, ...)
    TERN_PRINTF(4, 5);
#define TERN_LOG(level, ...) terni_log((level), __FILE__, __LINE__, __VA_ARGS__)

/* What a caller hands over (check.c); `name` is the argument's. */
enum tern_status terni_check_pointer(const char *name, const void *p); /* TERN_INVALID_ARGUMENT if NULL */
/* Likewise if it is not a multiple of `alignment`, or a number is below `low` or above `high`. */
enum tern_status terni_check_aligned(const char *name, const void *p, uint32_t alignment);
enum tern_status terni_check_range(const char *name, uint64_t value, uint64_t low, uint64_t high);
/* `p` points to a structure of the public interface, which begins with its size_t size; this library knows
 * `known` bytes of it. TERN_INVALID_ARGUMENT if p is NULL or the structure shorter: "use its _INIT macro";
 * TERN_UNSUPPORTED names the first byte beyond `known` that is not zero. */
enum tern_status terni_check_struct(const char *name, const void *p, size_t known);

/* Host monotonic clock, nanoseconds. */
uint64_t terni_clock_ns(void);

/* thread.c: a thread that takes no signals of the process. name: to 15 characters, of the thread and in
 * sentences. */
enum tern_status terni_thread_open(pthread_t *thread, const char *name, void *(*run)(void *), void *arg);

/* All of Tern's environment, one table (config.c): name, default, help. Unset or empty: the default. */
enum terni_variable {
    TERN_ENV_MACHINE, /* auto | cpu | cuda */
    TERN_ENV_TIMEOUT_MS,
    TERN_ENV_CPU_SEED,
    TERN_ENV_CPU_SMS,      /* processors the cpu machine claims to have */
    TERN_ENV_TRANSFER,     /* auto | bulk | plain */
    TERN_ENV_EARLY_LAUNCH, /* 0 | 1 */
    TERN_ENV_LOG,          /* error | warn | info | trace */
    TERN_ENV_TRACE,        /* folder for traces; "": none */
    TERN_ENV_TRACE_EVENTS, /* of a rank that a trace holds */
    TERN_ENV_INTERFACE,
    TERN_ENV_DOMAIN_SIZE,   /* ranks of one domain at most; 0: as found */
    TERN_ENV_PROXY,         /* engine of the proxy: tcp | fabric:PROVIDER */
    TERN_ENV_NICS,          /* RDMA NICs: as net/nic_choice.c reads them */
    TERN_ENV_NIC_GID_INDEX, /* of RDMA NICs: what their packets say; "": chosen */
    TERN_ENV_NIC_TRAFFIC_CLASS,
    TERN_ENV_NIC_SERVICE_LEVEL,
    TERN_ENV_NIC_RECORDS, /* 0 | 1 */
    TERN_ENV_SOFTNIC,     /* how NICs in software reach each other: as net/softnic_nic_ops.c reads it */
    TERN_ENV_ID,          /* set by tern-run: 256 hex digits, or host:port/cookie */
    TERN_ENV_RANK,
    TERN_ENV_NUM_RANKS,
    TERN_ENV_ID_FD, /* set by tern-run for rank 0: the listening socket of TERN_ID */
    TERN_ENV_COUNT
};
const char *terni_env_name(enum terni_variable variable);
const char *terni_env_default(enum terni_variable variable);
const char *terni_env_help(enum terni_variable variable);
/* The value in force: the environment's, else the default. Never NULL. */
const char *terni_env(enum terni_variable variable);
/* The value as a whole number of 0 to max; TERN_INVALID_ARGUMENT names variable and value otherwise. */
enum tern_status terni_env_uint(enum terni_variable variable, uint64_t max, uint64_t *value);

#endif
