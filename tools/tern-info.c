/* SPDX-License-Identifier: Apache-2.0
 *
 * tern-info: what this build of Tern has, what this host offers it, and which settings are in force. Started
 * by tern-run it opens a communicator instead and rank 0 prints who reaches whom. */
#include "comm/courier.h"
#include "machine/machine.h"
#include "net/engine.h"
#include "net/mlx5_provider.h"
#include "net/nic_place.h"
#include "net/nic_provider.h"
#include "output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char manual[] =
    "tern-info - what Tern finds on this host\n"
    "\n"
    "  tern-info [-c]\n"
    "  tern-run -n N tern-info\n"
    "\n"
    "  -c           the environment variables of Tern: value in force, default, meaning\n"
    "  --help       this text\n"
    "  --version    the version\n"
    "\n"
    "Without options it prints the version, what was built in, the machines that can run kernels, and the\n"
    "RDMA NICs of this host: how far each is from the first device, what it lacks, and which of them ranks "
    "would\n"
    "take (TERN_NICS). When TERN_ID is set, as tern-run does, it opens a communicator with all ranks, and "
    "rank 0 prints its "
    "machine,\n"
    "ranks, hosts and domains. The exit status is 1 if something that should work does not, 2 for a wrong "
    "option,\n"
    "or where what it prints cannot be written.\n";

#ifdef __clang__
static const char compiler[] = __VERSION__;
#else
static const char compiler[] = "gcc " __VERSION__;
#endif

enum { MAX_DEVICES = 64 };

static int complain(const char *what, enum tern_status status)
{
    fprintf(stderr, "tern-info: %s: %s: %s\n", what, tern_status_string(status), tern_last_error());
    return 1;
}

static int is_one_of(enum terni_variable variable, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(terni_env(variable), words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Values that a program would be refused for; the variables of tern-run are judged by who opens with them. */
static enum tern_status check_environment(void)
{
    static const char *const machines[] = {"auto", "cpu", "cuda", NULL};
    static const char *const transfers[] = {"auto", "bulk", "plain", NULL};
    static const char *const levels[] = {"error", "warn", "info", "trace", NULL};
    static const struct {
        enum terni_variable variable;
        const char *const *words;
    } choices[] = {{TERN_ENV_MACHINE, machines}, {TERN_ENV_TRANSFER, transfers}, {TERN_ENV_LOG, levels}};
    static const struct {
        enum terni_variable variable;
        uint64_t min, max;
    } numbers[] = {{TERN_ENV_TIMEOUT_MS, 1, UINT32_MAX}, {TERN_ENV_CPU_SEED, 0, UINT64_MAX},
                   {TERN_ENV_CPU_SMS, 1, UINT32_MAX},    {TERN_ENV_DOMAIN_SIZE, 0, UINT32_MAX},
                   {TERN_ENV_TRACE_EVENTS, 0, 1 << 24},  {TERN_ENV_NIC_GID_INDEX, 0, 255},
                   {TERN_ENV_NIC_TRAFFIC_CLASS, 0, 255}, {TERN_ENV_NIC_SERVICE_LEVEL, 0, 15}};
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (!is_one_of(choices[i].variable, choices[i].words)) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is not a value of it: %s",
                             terni_env_name(choices[i].variable), terni_env(choices[i].variable),
                             terni_env_help(choices[i].variable));
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t value;
        if (terni_env(numbers[i].variable)[0] == '\0') {
            continue; /* not set, and there is no number that stands for that */
        }
        TERN_TRY(terni_env_uint(numbers[i].variable, numbers[i].max, &value));
        if (value < numbers[i].min) {
            return TERN_FAIL(TERN_INVALID_ARGUMENT, "%s=%s is below the least allowed, %llu",
                             terni_env_name(numbers[i].variable), terni_env(numbers[i].variable),
                             (unsigned long long)numbers[i].min);
        }
    }
    TERN_TRY(terni_courier_check_environment());
    return terni_nic_check_environment();
}

static void print_environment(void)
{
    for (int v = 0; v < TERN_ENV_COUNT; v++) {
        enum terni_variable variable = (enum terni_variable)v;
        const char *name = terni_env_name(variable);
        const char *set = getenv(name);
        printf("%s=%s\n    %s\n    default: %s%s\n", name, terni_env(variable), terni_env_help(variable),
               terni_env_default(variable)[0] != '\0' ? terni_env_default(variable) : "empty",
               set != NULL && set[0] != '\0' ? "; set in the environment" : "");
    }
}

static void print_machine(const struct machine_info *info)
{
    printf("    device %d: %s, ", info->device, info->name);
    if (strstr(info->name, "processors") == NULL) { /* the cpu machine's name has their number */
        printf("%d processors, ", info->num_sms);
    }
    printf("%llu MiB, %u bytes of shared memory a block, bulk copies: %s\n",
           (unsigned long long)(info->memory_bytes >> 20), info->max_shared_bytes,
           info->has_bulk ? "yes" : "no");
    if (info->driver[0] != '\0') {
        printf("    %s, compute capability %d\n", info->driver, info->compute_capability);
    }
}

static int print_cpu(void)
{
    struct executor *executor;
    struct machine *machine;
    enum tern_status status = terni_executor_open(0, &executor);
    if (status != TERN_OK) {
        return complain("the cpu machine does not start", status);
    }
    status = terni_cpu_open(executor, &machine);
    terni_executor_release(executor);
    if (status != TERN_OK) {
        return complain("the cpu machine does not open", status);
    }
    printf("machine cpu\n");
    print_machine(&machine->info);
    machine->ops->close(machine);
    return 0;
}

/* On memory of which other devices this one's atomics are atomic. */
static void print_links(struct machine *m, struct machine *const *machines, int num)
{
    int lacking = 0;
    for (int i = 0; i < num; i++) {
        if (m->ops->lacks_atomics(m, machines[i]->info.uuid)) {
            printf("%s %d", lacking++ == 0 ? "    atomics: the link carries none to device" : ",",
                   machines[i]->info.device);
        }
    }
    if (num > 1) {
        printf("%s\n", lacking == 0 ? "    atomics: to every other device" : "");
    }
}

static int print_cuda(void)
{
    struct machine *machines[MAX_DEVICES];
    int num = 0, result = 0;
    printf("machine cuda: %s\n", terni_cuda_describe());
    for (int i = 0; i < terni_cuda_device_count() && i < MAX_DEVICES; i++) {
        enum tern_status status = terni_cuda_open(i, &machines[num]);
        if (status != TERN_OK) {
            result = complain("a cuda device does not open", status);
            continue;
        }
        num++;
    }
    for (int i = 0; i < num; i++) {
        print_machine(&machines[i]->info);
        print_links(machines[i], machines, num);
    }
    for (int i = 0; i < num; i++) {
        machines[i]->ops->close(machines[i]);
    }
    return result;
}

/* The PCI address of each device that runs kernels; of the cpu machine, one that has none. */
static int list_devices(char devices[MAX_DEVICES][16])
{
    int num = 0;
    for (int i = 0; i < terni_cuda_device_count() && num < MAX_DEVICES; i++) {
        struct machine *machine;
        if (terni_cuda_open(i, &machine) == TERN_OK) {
            memcpy(devices[num++], machine->info.pci, sizeof machine->info.pci);
            machine->ops->close(machine);
        }
    }
    if (num == 0) {
        devices[num++][0] = '\0';
    }
    return num;
}

/* The NICs that the rank at place `index` of the host would take. */
static int print_choice(struct nic_place *nics, int num_nics, const char *device, int index, int num_ranks)
{
    struct nic_wish wish = {terni_env(TERN_ENV_NICS), 0, index, num_ranks};
    int chosen[NIC_MAX], num_chosen;
    enum tern_status status = terni_nic_choose(nics, num_nics, &wish, chosen, &num_chosen);
    if (status == TERN_INVALID_ARGUMENT) {
        return complain("TERN_NICS is invalid", status);
    }
    printf("    for rank %d of the host, device %s:", index,
           device[0] != '\0' ? device : "without an address");
    for (int i = 0; status == TERN_OK && i < num_chosen; i++) {
        printf(" %s:%d (%s)", nics[chosen[i]].name, nics[chosen[i]].port,
               terni_nic_distance_text(nics[chosen[i]].distance));
    }
    printf("%s\n", status == TERN_OK ? "" : " none");
    return 0;
}

/* NICs with their distance from the first device, what each lacks, and which of them each rank would take. */
static int print_nics(void)
{
    struct nic_place nics[NIC_MAX];
    char devices[MAX_DEVICES][16];
    int num_devices = list_devices(devices), num_nics = terni_nic_scan("", devices[0], nics), result = 0;
    printf("network mlx5: %s; never run on a NIC yet\n", terni_mlx5_describe());
    if (num_nics == 0) {
        printf("    this host has no RDMA NIC\n");
        return terni_env(TERN_ENV_NICS)[0] != '\0' ? print_choice(nics, 0, devices[0], 0, 1) : 0;
    }
    for (int i = 0; i < num_nics; i++) {
        char text[256];
        terni_nic_print(&nics[i], text, sizeof text);
        printf("    %s\n", text);
        if (terni_mlx5_probe(NULL, nics[i].name, nics[i].port) != TERN_OK) {
            printf("        cannot be used: %s\n", tern_last_error());
        }
    }
    printf("    memory of GPUs by its address: nvidia-peermem is %s\n",
           terni_nic_has_peermem("") ? "loaded" : "not loaded");
    for (int i = 0; i < num_devices; i++) {
        num_nics = terni_nic_scan("", devices[i], nics);
        result |= print_choice(nics, num_nics, devices[i], i, num_devices);
    }
    return result;
}

static int print_host(void)
{
    uint32_t v = tern_version();
    int is_failed;
    printf("tern %u.%u.%u, built by %s\n", v >> 16, (v >> 8) & 255, v & 255, compiler);
    is_failed = print_cpu();
    is_failed |= print_cuda();
    is_failed |= print_nics();
    printf("network tcp: here\n");
    printf("network libfabric: %s\n", terni_fabric_describe());
    return is_failed;
}

static int print_communicator(void)
{
    struct tern_id id;
    struct tern_comm *comm;
    int rank, num_ranks, bytes;
    char *text;
    enum tern_status status = tern_id_from_environment(&id, &rank, &num_ranks);
    if (status != TERN_OK) {
        return complain("the environment names no communicator", status);
    }
    status = tern_comm_open(&id, rank, num_ranks, NULL, &comm);
    if (status != TERN_OK) {
        char what[48];
        snprintf(what, sizeof what, "rank %d has no communicator", rank);
        return complain(what, status);
    }
    bytes = tern_comm_describe(comm, NULL, 0) + 1;
    text = (char *)malloc((size_t)bytes);
    if (rank == 0 && text != NULL) {
        tern_comm_describe(comm, text, (size_t)bytes);
        fputs(text, stdout);
    }
    free(text);
    status = tern_comm_barrier(comm); /* nobody leaves before all have opened */
    tern_comm_close(comm);
    return status == TERN_OK ? 0 : complain("the barrier fails", status);
}

/* What is printed is there, or the exit status says that it is not. */
static int finish(int result) { return output_is_whole("tern-info") || result != 0 ? result : 2; }

int main(int argc, char **argv)
{
    enum tern_status status;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(manual, stdout);
            return finish(0);
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("tern-info %d.%d.%d\n", TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
            return finish(0);
        }
        if (strcmp(argv[i], "-c") != 0) {
            fprintf(stderr, "tern-info: unknown option %s; --help lists all\n", argv[i]);
            return 2;
        }
    }
    if (argc > 1) {
        print_environment();
    }
    status = check_environment();
    if (status != TERN_OK) {
        return finish(complain("the environment is invalid", status));
    }
    if (argc > 1) {
        return finish(0);
    }
    return finish(terni_env(TERN_ENV_ID)[0] != '\0' ? print_communicator() : print_host());
}
