/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other ranks address, on the cpu machine. A range of addresses is reserved by a mapping that
 * nobody may touch; a piece of memory replaces a part of it in place, so that no pointer into the range ever
 * changes.
 *
 *     SHARE_LOCAL, SHARE_GROWING   anonymous shared memory: one process, one address space
 *     SHARE_EXPORTED               a memfd a piece; peers map it by its descriptor
 *
 * Memory that the program mapped itself is lent by a descriptor of the same file, which the program must
 * still have open: /proc/self/maps says what is mapped, and the open descriptors are searched for that file.
 * So the caller need not name it, and cannot name a wrong one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "machine/cpu_machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Addresses without memory, anywhere (at NULL) or in place of what is mapped at `at`. */
static void *reserve(void *at, uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0);
    return mmap(at, bytes, PROT_NONE, flags, -1, 0);
}

enum tern_status terni_cpu_share_reserve(struct machine *m, int kind, uint64_t bytes, struct share *share)
{
    void *base;
    (void)m;
    if (bytes == 0 || bytes > INT64_MAX) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT, "shared memory of %llu bytes", (unsigned long long)bytes);
    }
    base = reserve(NULL, bytes);
    if (base == MAP_FAILED) {
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "no address space for %llu bytes of shared memory: %m",
                         (unsigned long long)bytes);
    }
    memset(share, 0, sizeof *share);
    share->base = (char *)base;
    share->reserved = bytes;
    share->kind = kind;
    return TERN_OK;
}

/* Maps the next piece in place of its reservation. */
static enum tern_status map_piece(struct share *share, int fd, uint64_t offset, uint64_t bytes)
{
    int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
    char *at = share->base + share->bytes;
    if (bytes == 0 || bytes > share->reserved - share->bytes) {
        return TERN_FAIL(TERN_INTERNAL_ERROR, "%llu bytes more in a range of %llu that has %llu",
                         (unsigned long long)bytes, (unsigned long long)share->reserved,
                         (unsigned long long)share->bytes);
    }
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset) == MAP_FAILED) {
        int reason = errno;
        (void)reserve(at, bytes); /* in case the old mapping went before the new one failed */
        errno = reason;
        return TERN_FAIL(TERN_OUT_OF_MEMORY, "cannot map %llu bytes of shared memory: %m",
                         (unsigned long long)bytes);
    }
    share->bytes += bytes;
    return TERN_OK;
}

enum tern_status terni_cpu_share_add(struct machine *m, struct share *share, uint64_t bytes, int *fd)
{
    enum tern_status status;
    int made = -1;
    (void)m;
    if (share->kind == SHARE_EXPORTED) {
        made = memfd_create("tern", MFD_CLOEXEC);
        if (made < 0) {
            return TERN_FAIL(TERN_SYSTEM_ERROR, "memfd_create: %m");
        }
        if (ftruncate(made, (off_t)bytes) != 0) {
            status = TERN_FAIL(TERN_OUT_OF_MEMORY, "a memfd of %llu bytes: %m", (unsigned long long)bytes);
            goto close_fd;
        }
    }
    status = map_piece(share, made, 0, bytes);
    if (status != TERN_OK) {
        goto close_fd;
    }
    *fd = made;
    return TERN_OK;

close_fd:
    if (made >= 0) {
        close(made);
    }
    return status;
}

/* The mapping keeps the memory alive. */
enum tern_status terni_cpu_share_import(struct machine *m, struct share *share, int fd, uint64_t offset,
                                        uint64_t bytes)
{
    struct stat info;
    uint64_t size, page = m->info.share_granule;
    if (fstat(fd, &info) != 0) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "fstat of imported descriptor %d: %m", fd);
    }
    size = info.st_size > 0 ? (uint64_t)info.st_size : 0;
    /* A page that the file begins is there as a whole. */
    if (offset + bytes < bytes || offset + bytes > size + (page - 1) - (size + (page - 1)) % page) {
        return TERN_FAIL(TERN_INVALID_ARGUMENT,
                         "imported memory has %llu bytes, %llu from %llu on are expected",
                         (unsigned long long)size, (unsigned long long)bytes, (unsigned long long)offset);
    }
    TERN_TRY(map_piece(share, fd, offset, bytes));
    close(fd);
    return TERN_OK;
}

void terni_cpu_share_trim(struct machine *m, struct share *share, uint64_t bytes)
{
    (void)m;
    if (share->bytes > bytes) {
        if (reserve(share->base + bytes, share->bytes - bytes) == MAP_FAILED) {
            TERN_LOG(TERN_LOG_WARN, "cannot give back %llu bytes of shared memory: %s",
                     (unsigned long long)(share->bytes - bytes), strerror(errno));
        }
        share->bytes = bytes;
    }
}

enum tern_status terni_cpu_peer_enable(struct machine *m, int device)
{
    (void)m;
    (void)device;
    return TERN_OK; /* one process, one address space */
}

int terni_cpu_lacks_atomics(struct machine *m, const unsigned char uuid[16])
{
    (void)m;
    (void)uuid;
    return 0; /* the processor's own, whoever has the memory */
}

void terni_cpu_share_free(struct machine *m, struct share *share)
{
    (void)m;
    if (share->base != NULL) {
        munmap(share->base, share->reserved);
    }
    memset(share, 0, sizeof *share);
}

/* ---- Memory of the program's own ---- */

/* The line of /proc/self/maps in which a range lies. */
struct mapping {
    unsigned long begin, end;
    unsigned long long offset, inode;
    unsigned device_major, device_minor;
    char access[5]; /* "rw-s" */
};

static enum tern_status find_mapping(uintptr_t memory, uint64_t bytes, struct mapping *found)
{
    char line[512];
    int is_found = 0, begins_line = 1;
    FILE *file = fopen("/proc/self/maps", "re");
    if (file == NULL) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "cannot look for the mapping at %p: %m", (void *)memory);
    }
    while (!is_found && fgets(line, sizeof line, file) != NULL) {
        struct mapping *f = found;
        if (begins_line && sscanf(line, "%lx-%lx %4s %llx %x:%x %llu", &f->begin, &f->end, f->access,
                                  &f->offset, &f->device_major, &f->device_minor, &f->inode) == 7) {
            is_found = f->begin <= memory && memory < f->end && bytes <= f->end - memory;
        }
        begins_line = strchr(line, '\n') != NULL; /* a path can be longer than a buffer */
    }
    fclose(file);
    return is_found ? TERN_OK
                    : TERN_FAIL(TERN_UNSUPPORTED, "no one mapping of this process holds %llu bytes at %p",
                                (unsigned long long)bytes, (void *)memory);
}

/* Whether fd can read and write the mapped file. */
static int is_descriptor_of(int fd, const struct mapping *mapping)
{
    struct stat info;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) == O_RDWR && fstat(fd, &info) == 0 &&
           (unsigned long long)info.st_ino == mapping->inode && major(info.st_dev) == mapping->device_major &&
           minor(info.st_dev) == mapping->device_minor;
}

/* *fd: a duplicate of a descriptor of the mapped file, or -1. No other file's is duplicated: closing any
 * descriptor of a file drops the record locks that this process has on it. The duplicate is looked at again,
 * as another thread may close the number, and get it again for another file, at any time. */
static enum tern_status find_descriptor(const struct mapping *mapping, int *fd)
{
    enum tern_status status = TERN_OK;
    int found = -1;
    const struct dirent *entry;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        return TERN_FAIL(TERN_SYSTEM_ERROR, "cannot look for a descriptor of the mapped file: %m");
    }
    while (found < 0 && status == TERN_OK && (entry = readdir(folder)) != NULL) {
        char *end;
        long number = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0' || !is_descriptor_of((int)number, mapping)) {
            continue;
        }
        found = fcntl((int)number, F_DUPFD_CLOEXEC, 0);
        if (found < 0 && errno != EBADF) {
            status = TERN_FAIL(TERN_SYSTEM_ERROR, "cannot duplicate descriptor %ld: %m", number);
        } else if (found >= 0 && !is_descriptor_of(found, mapping)) {
            close(found);
            found = -1;
        }
    }
    closedir(folder);
    *fd = found;
    return status;
}

enum tern_status terni_cpu_share_lend(struct machine *m, void *memory, uint64_t bytes, int exported,
                                      struct share_loan *loan)
{
    struct mapping mapping;
    uint64_t page = m->info.share_granule, first;
    int fd = -1;
    memset(loan, 0, sizeof *loan);
    loan->fd = -1;
    if (!exported) {
        return TERN_OK; /* one process, one address space */
    }
    TERN_TRY(find_mapping((uintptr_t)memory, bytes, &mapping));
    if (memcmp(mapping.access, "rw", 2) == 0 && mapping.access[3] == 's') {
        TERN_TRY(find_descriptor(&mapping, &fd));
    }
    if (fd < 0) {
        return TERN_FAIL(
            TERN_UNSUPPORTED,
            "other processes cannot map the memory at %p: map a memfd (or a file of shared memory) "
            "with MAP_SHARED and keep its descriptor open",
            memory);
    }
    first = (uint64_t)((uintptr_t)memory - mapping.begin);
    loan->fd = fd;
    loan->inner = first % page;
    loan->offset = mapping.offset + first - loan->inner;
    loan->span_bytes = (loan->inner + bytes + page - 1) / page * page;
    return TERN_OK;
}
