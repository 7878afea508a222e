/* The structures of NVML's ABI that the fake fills, and their sizes by the names that pynvml has for them. */

#include <stddef.h>
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;
typedef union { double d; u32 u; u64 l; int64_t s; } nvmlValue;

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u64 time; nvmlValue value; } Sample;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;
typedef struct { u32 id, scope; int64_t time, latency; u32 kind, status; nvmlValue value; } Field;
typedef struct { u32 version; u64 counts[11]; u32 exceeded; } Sram;
typedef struct { u32 banks[5]; } Histogram;
typedef struct { u32 version; uint8_t cluster[16]; u32 status, clique, state, health; uint8_t summary; } Fabric;
typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } Process;
typedef struct { u32 pid; u64 time; u32 sm, memory, encoder, decoder; } ProcessSample;
typedef struct { u32 gpu, memory; u64 most, time, start; u32 running, reserved[5]; } Accounting;
typedef struct { u32 counts[8]; u64 megabytes; } Attributes;
typedef struct { void *device; u64 kind, data; u32 gpu_instance, compute_instance; } Event;
typedef struct { u64 kind; u32 gpu; } SystemEvent;
typedef struct { u32 version; void *set; } SystemSet;
typedef struct { u32 version; u64 kinds; void *set; } SystemRegister;
typedef struct { u32 version, milliseconds; void *set; SystemEvent *events; u32 room, count; } SystemWait;
typedef struct { u32 id, status; double value; const char *names[3]; } GpmMetric;
typedef struct { u32 version, count; void *first, *second; GpmMetric metrics[]; } GpmGet;
typedef struct { u32 version, supported; } GpmSupport;
typedef struct { u32 version; int32_t celsius; } Margin;

static const struct { const char *name; size_t size; } sizes[] = {
    {"nvmlPciInfo_t", sizeof(PciInfo)}, {"c_nvmlUtilization_t", sizeof(Utilization)}, {"c_nvmlSample_t", sizeof(Sample)},
    {"c_nvmlMemory_t", sizeof(Memory)}, {"c_nvmlMemory_v2_t", sizeof(Memory2)}, {"c_nvmlBAR1Memory_t", sizeof(Memory)},
    {"c_nvmlFieldValue_t", sizeof(Field)}, {"c_nvmlEccSramErrorStatus_v1_t", sizeof(Sram)},
    {"c_nvmlRowRemapperHistogramValues", sizeof(Histogram)}, {"c_nvmlGpuFabricInfo_v3_t", sizeof(Fabric)},
    {"c_nvmlProcessInfo_v3_t", sizeof(Process)}, {"c_nvmlProcessUtilizationSample_t", sizeof(ProcessSample)},
    {"c_nvmlAccountingStats_t", sizeof(Accounting)}, {"c_nvmlDeviceAttributes", sizeof(Attributes)},
    {"c_nvmlEventData_t", sizeof(Event)}, {"c_nvmlSystemEventData_v1_t", sizeof(SystemEvent)},
    {"c_nvmlSystemEventSetCreateRequest_v1_t", sizeof(SystemSet)},
    {"c_nvmlSystemRegisterEventRequest_v1_t", sizeof(SystemRegister)},
    {"c_nvmlSystemEventSetWaitRequest_v1_t", sizeof(SystemWait)}, {"c_nvmlGpmMetric_t", sizeof(GpmMetric)},
    {"c_nvmlGpmSupport_t", sizeof(GpmSupport)}, {"c_nvmlMarginTemperature_v1_t", sizeof(Margin)},
};

/* The size of the structure with this place in the list and its name; 0 beyond the end. */
size_t fake_size(u32 place, const char **name)
{
    if (place >= sizeof sizes / sizeof *sizes)
        return 0;
    *name = sizes[place].name;
    return sizes[place].size;
}
