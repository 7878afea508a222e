/* A libnvidia-ml.so.1 without a driver: it says what a scenario says, see scenario.h.

   cc -shared -fPIC -O2 -o libnvidia-ml.so.1 nvml.c */

#define _GNU_SOURCE
#include "scenario.h"
#include "structs.h"

#include <fcntl.h>

typedef void *Device;
#define NO_DEVICE ((Device)0)
#define DEVICE(gpu, slot) ((Device)(uintptr_t)(((gpu) + 1) * 64 + (slot) + 1))
#define GPU(device) ((int)((uintptr_t)(device) / 64) - 1)
#define SLOT(device) ((int)((uintptr_t)(device) % 64) - 1)
#define NOW ((u64)(now() * 1e6))

static int initialised;
static char loaded[128];
static int device_files[64];

/* ---- every function begins here ---- */

static int ask(Device device, const char *function, const char *argument, const char **words)
{
    char gpu[16] = "system", scope[24], key[96];
    struct table *table = current();
    if (!table)
        return DRIVER_NOT_LOADED;
    if (device != NO_DEVICE)
        snprintf(gpu, sizeof gpu, "%d", GPU(device));
    snprintf(scope, sizeof scope, SLOT(device) >= 0 ? "%s.%d" : "%s", gpu, SLOT(device));
    snprintf(key, sizeof key, *argument ? "%s:%s" : "%s", function, argument);
    struct line *line = find(table, gpu, "delay"), *version = find(table, "system", "nvmlSystemGetDriverVersion");
    if (line)
        usleep(atof(line->words) * 1e6);
    int status = act(find(table, gpu, "*"));
    if (status < 0 && *argument)
        status = act(find(table, scope, function));
    line = find(table, scope, key);
    if (!line && *argument)
        line = find(table, scope, function);
    if (status < 0)
        status = act(line);
    if (status >= 0)
        return status;
    if (version && *loaded && strcmp(loaded, version->words))
        return VERSION_MISMATCH;
    if (!initialised)
        return UNINITIALIZED;
    *words = line ? line->words : "";
    return line ? SUCCESS : NOT_SUPPORTED;
}

static const char *text(unsigned argument)
{
    static __thread char written[16];
    snprintf(written, sizeof written, argument == UINT32_MAX ? "all" : "%u", argument);
    return written;
}

#define BEGIN(device, argument) \
    const char *words = ""; \
    int status = ask(device, __func__, argument, &words); \
    if (status) \
        return status;

/* Of a function that has nothing to say but may be told to fail. */
#define BEGIN_SILENT(device) \
    const char *words = ""; \
    int status = ask(device, __func__, "", &words); \
    if (status && status != NOT_SUPPORTED) \
        return status;

#define TEXT(name, device, ...) \
    int name(__VA_ARGS__ char *out, u32 room) { BEGIN(device, "") snprintf(out, room, "%s", words); return 0; }
#define NUMBER(name, type) \
    int name(Device device, type *out) { BEGIN(device, "") *out = (type)number(&words); return 0; }
#define NUMBER_OF(name, type) \
    int name(Device device, u32 of, type *out) { BEGIN(device, text(of)) *out = (type)number(&words); return 0; }
#define TWO(name) \
    int name(Device device, u32 *one, u32 *two) \
    { BEGIN(device, "") *one = number(&words); *two = number(&words); return 0; }

/* ---- the library and the machine ---- */

int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    initialised = 1;
    BEGIN_SILENT(NO_DEVICE)
    struct table *table = current();
    struct line *version = find(table, "system", "nvmlSystemGetDriverVersion");
    struct line *directory = find(table, "system", "device-files");
    if (!*loaded && version)
        snprintf(loaded, sizeof loaded, "%s", version->words);
    for (int gpu = 0; directory && gpu < 64 && !device_files[gpu]; gpu++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/nvidia%d", directory->words, gpu);
        int file = open(path, O_RDWR | O_CLOEXEC);
        device_files[gpu] = file < 0 ? 0 : file;
    }
    return SUCCESS;
}

int nvmlShutdown(void)
{
    initialised = 0;
    for (int gpu = 0; gpu < 64; gpu++)
        if (device_files[gpu])
            close(device_files[gpu]);
    memset(device_files, 0, sizeof device_files);
    return SUCCESS;
}

TEXT(nvmlSystemGetDriverVersion, NO_DEVICE, )
TEXT(nvmlSystemGetNVMLVersion, NO_DEVICE, )
int nvmlSystemGetCudaDriverVersion(int *out) { BEGIN(NO_DEVICE, "") *out = number(&words); return SUCCESS; }
int nvmlDeviceGetCount_v2(u32 *out) { BEGIN(NO_DEVICE, "") *out = number(&words); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device *out)
{
    BEGIN_SILENT(DEVICE(index, -1))
    *out = DEVICE(index, -1);
    return SUCCESS;
}

/* ---- what a GPU is, and numbers of it ---- */

TEXT(nvmlDeviceGetUUID, device, Device device,)
TEXT(nvmlDeviceGetName, device, Device device,)
TEXT(nvmlDeviceGetSerial, device, Device device,)
TEXT(nvmlDeviceGetVbiosVersion, device, Device device,)
TWO(nvmlDeviceGetCudaComputeCapability)
TWO(nvmlDeviceGetMigMode)
TWO(nvmlDeviceGetEncoderUtilization)
TWO(nvmlDeviceGetDecoderUtilization)
TWO(nvmlDeviceGetJpgUtilization)
TWO(nvmlDeviceGetOfaUtilization)
NUMBER(nvmlDeviceGetArchitecture, u32)
NUMBER(nvmlDeviceGetMinorNumber, u32)
NUMBER(nvmlDeviceGetNumaNodeId, int)
NUMBER(nvmlDeviceGetNumFans, u32)
NUMBER(nvmlDeviceGetPowerUsage, u32)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, u32)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64)
NUMBER(nvmlDeviceGetPerformanceState, u32)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, u64)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, u64)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, u32)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, u32)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, u32)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, u32)
NUMBER(nvmlDeviceGetPcieReplayCounter, u32)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, u32)
NUMBER(nvmlDeviceGetPersistenceMode, u32)
NUMBER(nvmlDeviceGetAccountingMode, u32)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, u32)
NUMBER(nvmlDeviceGetGpuInstanceId, u32)
NUMBER(nvmlDeviceGetComputeInstanceId, u32)
NUMBER(nvmlDeviceGetSupportedEventTypes, u64)
NUMBER_OF(nvmlDeviceGetTemperature, u32)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, u32)
NUMBER_OF(nvmlDeviceGetFanSpeed_v2, u32)
NUMBER_OF(nvmlDeviceGetClockInfo, u32)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, u32)
NUMBER_OF(nvmlDeviceGetPcieThroughput, u32)
NUMBER_OF(nvmlDeviceGetNvLinkState, u32)

int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *out)
{
    BEGIN(device, "")
    snprintf(out->bus_id, sizeof out->bus_id, "%s", words);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization *out)
{
    BEGIN(device, "")
    *out = (Utilization){0};
    out->gpu = number(&words);
    out->memory = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *out)
{
    BEGIN(device, "")
    if (out->version != (sizeof *out | 2 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    u64 *all[] = {&out->total, &out->reserved, &out->free, &out->used};
    for (int i = 0; i < 4; i++)
        *all[i] = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(Device device, Memory *out)
{
    BEGIN(device, "")
    u64 *all[] = {&out->total, &out->free, &out->used};
    for (int i = 0; i < 3; i++)
        *all[i] = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetMarginTemperature(Device device, Margin *out)
{
    BEGIN(device, "")
    out->celsius = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Device device, u32 kind, u32 counter, u64 *out)
{
    char argument[24];
    snprintf(argument, sizeof argument, "%u:%u", kind, counter);
    BEGIN(device, argument)
    *out = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(Device device, Sram *out)
{
    BEGIN(device, "")
    out->exceeded = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    BEGIN(device, "")
    u32 *all[] = {corrected, uncorrected, pending, failed};
    for (int i = 0; i < 4; i++)
        *all[i] = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(Device device, Histogram *out)
{
    BEGIN(device, "")
    for (int i = 0; i < 5; i++)
        out->banks[i] = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *out)
{
    BEGIN(device, "")
    int third = out->version == (sizeof *out | 3 << 24);
    if (!third && out->version != (offsetof(Fabric, summary) | 2 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    out->state = number(&words);
    out->status = number(&words);
    out->health = number(&words);
    if (third)
        out->summary = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device device, int count, Field *fields)
{
    static const char kinds[] = "dulLsi";
    BEGIN_SILENT(device)
    for (Field *field = fields; field < fields + count; field++) {
        char argument[32];
        snprintf(argument, sizeof argument, field->scope ? "%u:%s" : "%u", field->id, text(field->scope));
        field->status = ask(device, "field", argument, &words);
        snprintf(argument, sizeof argument, "%u:each", field->id);
        if (field->status == NOT_SUPPORTED && field->scope != UINT32_MAX)
            field->status = ask(device, "field", argument, &words);
        field->time = NOW;
        if (field->status)
            continue;
        field->kind = strchr(kinds, *words++) - kinds;
        long double value = number(&words);
        switch (field->kind) {
        case 0: field->value.d = value; break;
        case 1: field->value.u = (u64)value; break;
        case 4: case 5: field->value.s = value; break;
        default: field->value.l = value;
        }
    }
    return SUCCESS;
}

#include "lists.h"
