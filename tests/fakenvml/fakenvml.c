/*
 * A stand-in for libnvidia-ml.so.1: answers what gpu-topo asks from a text file of key=value lines, named by the
 * environment variable FAKE_NVML and looked at again on every call, so that a test can change the machine under way.
 * Where a key occurs twice, the last one counts. What no key speaks of is NOT_SUPPORTED.
 *
 * The machine
 *   driver= nvml= cuda= count=N
 *   gpu.I.name uuid busid devid subsys board_part arch minor numa module virt c2c bar1 pstate util reasons replay
 *   gpu.I.pcie.gen pcie.width pcie.maxgen pcie.maxwidth pcie.gpumaxgen
 *   gpu.I.mig=CURRENT,PENDING   gpu.I.mig.devices=N
 *   gpu.I.fabric=STATE,STATUS,CLIQUE,HEALTHMASK,SUMMARY
 *   gpu.I.nvlink.L=STATE,TYPE,BUSID,VERSION    type: 0 GPU, 1 IBM NPU, 2 switch, 255 unknown; BUSID "-" is none
 *   gpu.I.nvlink.L.error.C=COUNT               the counters of nvmlDeviceGetNvLinkErrorCounter
 *   gpu.I.field.F[.SCOPE]=VALUE                nvmlDeviceGetFieldValues
 *   topo.I.J=LEVEL   p2p.I.J.CAPABILITY=STATUS (default 0, OK)
 *
 * Faults, for one GPU with the prefix gpu.I. and for all without; FUNCTION is the symbol's name, or * for every one
 *   error.FUNCTION=CODE     hang.FUNCTION=SECONDS (until the line is gone, at most so long)
 *   crash.FUNCTION=SIGNAL   exit.FUNCTION=STATUS
 *   gpu.I.lost=1            every call about it says GPU_IS_LOST
 *   chatter=1               the library prints to standard output and standard error
 *   log=FILE                a line per call: symbol, GPU, process id
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int Return;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

typedef struct Gpu { int index; } *Device;

/* The layouts are those of nvml.h, as nvidia-ml-py has them. */
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency;
    unsigned type;
    Return result;
    union { double d; unsigned u; unsigned long ul; uint64_t ull; } value;
} FieldValue;
typedef struct { unsigned char cluster[16]; Return status; uint32_t clique; unsigned char state; } FabricV1;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    Return status;
    uint32_t clique;
    unsigned char state;
    uint32_t health;
    unsigned char summary; /* from version 3 on */
} FabricV;

#define MAX_GPUS 64
#define FABRIC_V2 0x02000024u
#define FABRIC_V3 0x03000028u

/* --- the state file ------------------------------------------------------------------------------------------ */

typedef struct { const char *key, *value; int line; } Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static Entry *entries;
static size_t entry_count;
static struct stat seen;

static int by_key(const void *a, const void *b)
{
    const Entry *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order ? order : x->line - y->line;
}

static void load(const char *path)
{
    struct stat now;
    if (stat(path, &now)) {
        entry_count = 0;
        return;
    }
    if (text && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    free(text);
    free(entries);
    text = calloc(1, (size_t)now.st_size + 1);
    size_t length = fread(text, 1, (size_t)now.st_size, file);
    fclose(file);
    size_t lines = 1;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    entries = calloc(lines, sizeof *entries);
    entry_count = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *equals = strchr(line, '=');
        if (!equals || *line == '#')
            continue;
        *equals = 0;
        entries[entry_count] = (Entry){ line, equals + 1, (int)entry_count };
        entry_count++;
    }
    qsort(entries, entry_count, sizeof *entries, by_key);
    seen = now;
}

/* The value of a key; 0 where the file has none. The last of equal keys counts. */
static int get(const char *key, char *value, size_t size)
{
    const char *path = getenv("FAKE_NVML");
    int found = 0;
    if (!path)
        return 0;
    pthread_mutex_lock(&lock);
    load(path);
    size_t low = 0, high = entry_count; /* the first entry behind every equal key */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(entries[middle].key, key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low && !strcmp(entries[low - 1].key, key)) {
        snprintf(value, size, "%s", entries[low - 1].value);
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

__attribute__((format(printf, 3, 4))) static int get_text(char *value, size_t size, const char *format, ...)
{
    char key[160];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    return get(key, value, size);
}

__attribute__((format(printf, 2, 3))) static int get_number(long long *number, const char *format, ...)
{
    char key[160], value[128];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    if (!get(key, value, sizeof value))
        return 0;
    *number = strtoll(value, NULL, 0);
    return 1;
}

/* --- faults -------------------------------------------------------------------------------------------------- */

static int fault_value(const char *fault, const char *function, int gpu, long long *value)
{
    return (gpu >= 0 && (get_number(value, "gpu.%d.%s.%s", gpu, fault, function) ||
                         get_number(value, "gpu.%d.%s.*", gpu, fault))) ||
           get_number(value, "%s.%s", fault, function);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static Return fault(const char *function, int gpu)
{
    long long value;
    char log[256];
    if (get("log", log, sizeof log)) {
        FILE *file = fopen(log, "ae");
        if (file) {
            fprintf(file, "%s %d %d\n", function, gpu, (int)getpid());
            fclose(file);
        }
    }
    for (double began = seconds(); fault_value("hang", function, gpu, &value) && seconds() - began < (double)value;)
        usleep(5000);
    if (fault_value("crash", function, gpu, &value)) {
        signal((int)value, SIG_DFL);
        raise((int)value);
    }
    if (fault_value("exit", function, gpu, &value))
        _exit((int)value);
    if (fault_value("error", function, gpu, &value))
        return (Return)value;
    if (gpu >= 0 && get_number(&value, "gpu.%d.lost", gpu) && value)
        return GPU_IS_LOST;
    return SUCCESS;
}

/* --- the library --------------------------------------------------------------------------------------------- */

static struct Gpu gpus[MAX_GPUS];
static int users;

#define ENTER(gpu)                                                  \
    do {                                                            \
        if (!users)                                                 \
            return UNINITIALIZED;                                   \
        Return entered = fault(__func__, gpu);                      \
        if (entered)                                                \
            return entered;                                         \
    } while (0)
#define ENTER_DEVICE(device)                                        \
    do {                                                            \
        if (device < gpus || device >= gpus + MAX_GPUS)             \
            return INVALID_ARGUMENT;                                \
        ENTER(device->index);                                       \
    } while (0)

Return nvmlInitWithFlags(unsigned flags)
{
    long long value;
    (void)flags;
    Return failed = fault(__func__, -1);
    if (failed)
        return failed;
    if (!getenv("FAKE_NVML") || access(getenv("FAKE_NVML"), R_OK))
        return DRIVER_NOT_LOADED;
    if (get_number(&value, "chatter")) {
        printf("NVRM: chatter on standard output\n");
        fflush(stdout);
        fprintf(stderr, "NVRM: chatter on standard error\n");
    }
    for (int i = 0; i < MAX_GPUS; i++)
        gpus[i].index = i;
    users++;
    return SUCCESS;
}

Return nvmlShutdown(void)
{
    ENTER(-1);
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(Return code)
{
    static __thread char words[32];
    snprintf(words, sizeof words, "NVML error %d", code);
    return words;
}

static Return text_answer(char *buffer, unsigned size, const char *key, int gpu)
{
    char value[256];
    if (!(gpu < 0 ? get_text(value, sizeof value, "%s", key) : get_text(value, sizeof value, "gpu.%d.%s", gpu, key)))
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

Return nvmlSystemGetDriverVersion(char *buffer, unsigned size)
{
    ENTER(-1);
    return text_answer(buffer, size, "driver", -1);
}

Return nvmlSystemGetNVMLVersion(char *buffer, unsigned size)
{
    ENTER(-1);
    return text_answer(buffer, size, "nvml", -1);
}

Return nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    long long value;
    ENTER(-1);
    if (!get_number(&value, "cuda"))
        return NOT_SUPPORTED;
    *version = (int)value;
    return SUCCESS;
}

static int gpu_count(void)
{
    long long value;
    return get_number(&value, "count") && value <= MAX_GPUS ? (int)value : 0;
}

Return nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(-1);
    *count = (unsigned)gpu_count();
    return SUCCESS;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device)
{
    ENTER((int)index);
    if ((int)index >= gpu_count())
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

#define TEXT(function, key)                                         \
    Return function(Device device, char *buffer, unsigned size)     \
    {                                                               \
        ENTER_DEVICE(device);                                       \
        return text_answer(buffer, size, key, device->index);       \
    }
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part")

#define NUMBER(function, type, key)                                 \
    Return function(Device device, type *answer)                    \
    {                                                               \
        long long value;                                            \
        ENTER_DEVICE(device);                                       \
        if (!get_number(&value, "gpu.%d." key, device->index))      \
            return NOT_SUPPORTED;                                   \
        *answer = (type)value;                                      \
        return SUCCESS;                                             \
    }
NUMBER(nvmlDeviceGetArchitecture, unsigned, "arch")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetNumaNodeId, int, "numa")
NUMBER(nvmlDeviceGetModuleId, unsigned, "module")
NUMBER(nvmlDeviceGetVirtualizationMode, uint64_t, "virt")
NUMBER(nvmlDeviceGetC2cModeInfoV, unsigned, "c2c")
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "pstate")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, "reasons")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, "reasons")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie.gen")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie.maxgen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie.maxwidth")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie.gpumaxgen")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "replay")

static Return pci_answer(const char *bus_id, unsigned device_id, unsigned subsystem_id, PciInfo *info)
{
    unsigned domain, bus, device, function;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return UNKNOWN;
    memset(info, 0, sizeof *info);
    info->domain = domain;
    info->bus = bus;
    info->device = device;
    info->pci_device_id = device_id;
    info->pci_subsystem_id = subsystem_id;
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.%X", domain, bus, device, function);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff,
             device & 0xff);
    return SUCCESS;
}

Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info)
{
    char bus_id[64];
    long long device_id = 0, subsystem_id = 0;
    ENTER_DEVICE(device);
    if (!get_text(bus_id, sizeof bus_id, "gpu.%d.busid", device->index))
        return NOT_SUPPORTED;
    get_number(&device_id, "gpu.%d.devid", device->index);
    get_number(&subsystem_id, "gpu.%d.subsys", device->index);
    return pci_answer(bus_id, (unsigned)device_id, (unsigned)subsystem_id, info);
}

Return nvmlDeviceGetUtilizationRates(Device device, unsigned rates[2])
{
    long long value;
    ENTER_DEVICE(device);
    if (!get_number(&value, "gpu.%d.util", device->index))
        return NOT_SUPPORTED;
    rates[0] = (unsigned)value;
    rates[1] = 0;
    return SUCCESS;
}

Return nvmlDeviceGetBAR1MemoryInfo(Device device, unsigned long long sizes[3])
{
    long long value;
    ENTER_DEVICE(device);
    if (!get_number(&value, "gpu.%d.bar1", device->index))
        return NOT_SUPPORTED;
    sizes[0] = (unsigned long long)value;
    sizes[1] = (unsigned long long)value;
    sizes[2] = 0;
    return SUCCESS;
}

Return nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    char value[64];
    ENTER_DEVICE(device);
    if (!get_text(value, sizeof value, "gpu.%d.mig", device->index))
        return NOT_SUPPORTED;
    return sscanf(value, "%u,%u", current, pending) == 2 ? SUCCESS : UNKNOWN;
}

Return nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    ENTER_DEVICE(device);
    *count = 7;
    return SUCCESS;
}

Return nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *partition)
{
    long long value = 0;
    ENTER_DEVICE(device);
    get_number(&value, "gpu.%d.mig.devices", device->index);
    if (index >= value)
        return NOT_FOUND;
    *partition = &gpus[MAX_GPUS - 1];
    return SUCCESS;
}

/* --- NVLink and the fabric ----------------------------------------------------------------------------------- */

typedef struct { unsigned state, type, version; char bus_id[32]; } Link;

static Return link_of(Device device, unsigned number, Link *link)
{
    char value[128];
    if (!get_text(value, sizeof value, "gpu.%d.nvlink.0", device->index))
        return NOT_SUPPORTED;
    if (!get_text(value, sizeof value, "gpu.%d.nvlink.%u", device->index, number))
        return INVALID_ARGUMENT;
    return sscanf(value, "%u,%u,%31[^,],%u", &link->state, &link->type, link->bus_id, &link->version) == 4 ? SUCCESS
                                                                                                          : UNKNOWN;
}

#define LINK_ANSWER(function, type_of_answer, answer_statement)                \
    Return function(Device device, unsigned number, type_of_answer *answer)    \
    {                                                                          \
        Link link;                                                             \
        ENTER_DEVICE(device);                                                  \
        Return failed = link_of(device, number, &link);                        \
        if (failed)                                                            \
            return failed;                                                     \
        answer_statement;                                                      \
    }
LINK_ANSWER(nvmlDeviceGetNvLinkState, unsigned, *answer = link.state; return SUCCESS)
LINK_ANSWER(nvmlDeviceGetNvLinkVersion, unsigned, *answer = link.version; return SUCCESS)
LINK_ANSWER(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned, *answer = link.type;
            return link.state ? SUCCESS : NOT_SUPPORTED)
LINK_ANSWER(nvmlDeviceGetNvLinkRemotePciInfo_v2, PciInfo,
            return link.state &&*link.bus_id != '-' ? pci_answer(link.bus_id, 0x22a310de, 0, answer) : NOT_SUPPORTED)

Return nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned number, unsigned counter, unsigned long long *count)
{
    long long value;
    ENTER_DEVICE(device);
    if (!get_number(&value, "gpu.%d.nvlink.%u.error.%u", device->index, number, counter))
        return NOT_SUPPORTED;
    *count = (unsigned long long)value;
    return SUCCESS;
}

Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values)
{
    ENTER_DEVICE(device);
    for (int i = 0; i < count; i++) {
        FieldValue *field = &values[i];
        long long value;
        field->type = 3; /* unsigned long long */
        if (get_number(&value, "gpu.%d.field.%u.%u", device->index, field->field, field->scope) ||
            get_number(&value, "gpu.%d.field.%u", device->index, field->field)) {
            field->value.ull = (uint64_t)value;
            field->result = SUCCESS;
        } else {
            field->result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

typedef struct { unsigned state, status, clique, health, summary; } Fabric;

static Return fabric_of(Device device, Fabric *fabric)
{
    char value[128];
    if (!get_text(value, sizeof value, "gpu.%d.fabric", device->index))
        return NOT_SUPPORTED;
    return sscanf(value, "%u,%u,%u,%i,%u", &fabric->state, &fabric->status, &fabric->clique, (int *)&fabric->health,
                  &fabric->summary) == 5
               ? SUCCESS
               : UNKNOWN;
}

Return nvmlDeviceGetGpuFabricInfo(Device device, FabricV1 *info)
{
    Fabric fabric;
    ENTER_DEVICE(device);
    Return failed = fabric_of(device, &fabric);
    if (failed)
        return failed;
    info->status = (Return)fabric.status;
    info->clique = fabric.clique;
    info->state = (unsigned char)fabric.state;
    return SUCCESS;
}

Return nvmlDeviceGetGpuFabricInfoV(Device device, FabricV *info)
{
    Fabric fabric;
    long long newest = 3;
    ENTER_DEVICE(device);
    get_number(&newest, "fabric.version");
    if (info->version != FABRIC_V2 && !(info->version == FABRIC_V3 && newest >= 3))
        return ARGUMENT_VERSION_MISMATCH;
    Return failed = fabric_of(device, &fabric);
    if (failed)
        return failed;
    info->status = (Return)fabric.status;
    info->clique = fabric.clique;
    info->state = (unsigned char)fabric.state;
    info->health = fabric.health;
    if (info->version == FABRIC_V3)
        info->summary = (unsigned char)fabric.summary;
    return SUCCESS;
}

/* --- between GPUs -------------------------------------------------------------------------------------------- */

Return nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *level)
{
    long long value;
    ENTER_DEVICE(a);
    if (!get_number(&value, "topo.%d.%d", a->index, b->index) && !get_number(&value, "topo.%d.%d", b->index, a->index))
        return NOT_SUPPORTED;
    *level = (unsigned)value;
    return SUCCESS;
}

Return nvmlDeviceGetP2PStatus(Device a, Device b, unsigned capability, unsigned *status)
{
    long long value = 0;
    ENTER_DEVICE(a);
    if (!get_number(&value, "p2p.%d.%d.%u", a->index, b->index, capability))
        get_number(&value, "p2p.%d.%d.%u", b->index, a->index, capability);
    *status = (unsigned)value;
    return SUCCESS;
}
