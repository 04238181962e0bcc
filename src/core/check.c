/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of what a caller hands over, the same for every public call.
 *
 * Structures carry their size and only grow at the end. One that is shorter than this library knows was not
 * initialised, since no older library had a shorter one with the same name; one that is longer comes from a
 * caller built against a newer header, and is understood as long as what is not known here is zero, that is,
 * default. */
#include "core/core.h"

enum tern_status terni_check_pointer(const char *name, const void *p)
{
    return p != NULL ? TERN_OK : TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is NULL", name);
}

enum tern_status terni_check_aligned(const char *name, const void *p, uint32_t alignment)
{
    return (uintptr_t)p % alignment == 0
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is at %p; it must be %u-byte aligned", name, p,
                           alignment);
}

enum tern_status terni_check_range(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
    return value >= low && value <= high
               ? TERN_OK
               : TERN_FAIL(TERN_INVALID_ARGUMENT, "%s is %llu; it must be %llu to %llu", name,
                           (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

enum tern_status terni_check_struct(const char *name, const void *p, size_t known)
{
    const unsigned char *bytes = (const unsigned char *)p;
    size_t size;
    TERN_TRY(terni_check_pointer(name, p));
    size = *(const size_t *)p;
    if (size < known) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "%s->size is %zu, but this library knows %zu bytes: use its _INIT macro", name, size,
                         known);
    }
    for (size_t i = known; i < size; i++) {
        if (bytes[i] != 0) {
            return TERN_FAIL(TERN_UNSUPPORTED, "byte %zu of %s is not zero; this library knows %zu bytes", i,
                             name, known);
        }
    }
    return TERN_OK;
}
