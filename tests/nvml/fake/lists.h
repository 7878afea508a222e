/* The functions of NVML that fill lists, wait for events, and take samples. */

/* ---- processes, pages and samples: groups of numbers ---- */

#define PROCESSES(name) \
    int name(Device device, u32 *count, Process *out) \
    { \
        BEGIN(device, "") \
        u32 room = *count; \
        for (*count = 0; *words; (*count)++) { \
            Process one = {.pid = number(&words), .gpu_instance = -1, .compute_instance = -1}; \
            one.memory = number(&words); \
            if (out && *count < room) \
                out[*count] = one; \
        } \
        return *count > room ? INSUFFICIENT_SIZE : SUCCESS; \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

int nvmlDeviceGetProcessUtilization(Device device, ProcessSample *out, u32 *count, u64 last_seen)
{
    BEGIN(device, "")
    u32 room = *count;
    for (*count = 0; *words;) {
        ProcessSample one = {.pid = number(&words)};
        one.time = number(&words);
        one.sm = number(&words);
        one.memory = number(&words);
        if (one.time <= last_seen)
            continue;
        if (out && *count < room)
            out[*count] = one;
        ++*count;
    }
    return !*count ? NOT_FOUND : *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetAccountingStats(Device device, u32 pid, Accounting *out)
{
    BEGIN(device, text(pid))
    memset(out, 0, sizeof *out);
    out->most = number(&words);
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(Device device, u32 cause, u32 *count, u64 *out)
{
    BEGIN(device, text(cause))
    u32 room = *count, pages = number(&words);
    *count = pages;
    for (u32 i = 0; out && i < pages && i < room; i++)
        out[i] = 4096 * (i + 1);
    return pages > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* The driver's buffer: a sample each `period` microseconds, the last 100 of them. */
int nvmlDeviceGetSamples(Device device, u32 kind, u64 last_seen, u32 *value_kind, u32 *count, Sample *out)
{
    BEGIN(device, text(kind))
    u64 newest = number(&words), period = number(&words);
    u32 value = number(&words), room = *count;
    newest -= newest % period;
    *value_kind = 1;
    *count = 0;
    for (int age = 99; age >= 0; age--) {
        u64 time = newest - age * period;
        if (time <= last_seen || (out && *count == room))
            continue;
        if (out)
            out[*count] = (Sample){time, {.l = value}};
        ++*count;
    }
    return *count ? SUCCESS : NOT_FOUND;
}

/* ---- MIG: a slot is a device when it has a UUID ---- */

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, u32 slot, Device *out)
{
    BEGIN_SILENT(device)
    *out = DEVICE(GPU(device), (int)slot);
    status = ask(*out, "nvmlDeviceGetUUID", "", &words);
    return status == NOT_SUPPORTED ? NOT_FOUND : status;
}

int nvmlDeviceGetAttributes_v2(Device device, Attributes *out)
{
    BEGIN(device, "")
    for (int i = 0; i < 8; i++)
        out->counts[i] = number(&words);
    out->megabytes = number(&words);
    return SUCCESS;
}

/* ---- GPM: a sample knows whose it is, and when ---- */

struct gpm { Device device; int instance; u64 time; };

int nvmlGpmSampleAlloc(void **out)
{
    *out = calloc(1, sizeof(struct gpm));
    return SUCCESS;
}

int nvmlGpmSampleFree(void *sample)
{
    free(sample);
    return SUCCESS;
}

int nvmlGpmQueryDeviceSupport(Device device, GpmSupport *out)
{
    BEGIN(device, "")
    out->supported = number(&words);
    return SUCCESS;
}

int nvmlGpmSampleGet(Device device, struct gpm *sample)
{
    BEGIN(device, "")
    *sample = (struct gpm){device, -1, NOW};
    return SUCCESS;
}

int nvmlGpmMigSampleGet(Device device, u32 instance, struct gpm *sample)
{
    BEGIN(device, "")
    *sample = (struct gpm){device, instance, NOW};
    return SUCCESS;
}

int nvmlGpmMetricsGet(GpmGet *get)
{
    const struct gpm *first = get->first, *second = get->second;
    if (get->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    if (!first->time || first->device != second->device || first->instance != second->instance
        || first->time >= second->time)
        return INVALID_ARGUMENT;
    for (GpmMetric *metric = get->metrics; metric < get->metrics + get->count; metric++) {
        const char *words;
        char argument[32];
        snprintf(argument, sizeof argument, first->instance < 0 ? "%u" : "%u:%d", metric->id, first->instance);
        metric->status = ask(first->device, "gpm", argument, &words);
        if (!metric->status)
            metric->value = number(&words);
    }
    return SUCCESS;
}

/* ---- events: lines `GPU event:N KIND DATA`, told in the order of N to sets that were there before them ---- */

struct set { unsigned told; };

static struct line *following(const char *key, unsigned after)
{
    char wanted[48];
    snprintf(wanted, sizeof wanted, "%s:%u", key, after + 1);
    struct table *table = current();
    for (size_t i = 0; table && i < table->count; i++)
        if (!strcmp(table->lines[i].key, wanted))
            return &table->lines[i];
    return NULL;
}

static struct set *make_set(const char *key)
{
    struct set *set = calloc(1, sizeof *set);
    while (following(key, set->told))
        set->told++;
    return set;
}

/* The next event, waited for by looking again and again, for it comes with a file. */
static struct line *await(struct set *set, const char *key, u32 milliseconds)
{
    double until = now() + milliseconds / 1e3;
    struct line *line;
    while (!(line = following(key, set->told)) && now() < until)
        usleep(10000);
    set->told += line != NULL;
    return line;
}

int nvmlEventSetCreate(struct set **out)
{
    BEGIN_SILENT(NO_DEVICE)
    *out = make_set("event");
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device device, u64 kinds, struct set *set)
{
    BEGIN(device, "")
    return set && kinds ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetWait_v2(struct set *set, Event *out, u32 milliseconds)
{
    BEGIN_SILENT(NO_DEVICE)
    struct line *line = await(set, "event", milliseconds);
    if (!line)
        return TIMEOUT;
    words = line->words;
    *out = (Event){.device = DEVICE(atoi(line->scope), -1), .gpu_instance = -1, .compute_instance = -1};
    out->kind = number(&words);
    out->data = number(&words);
    return SUCCESS;
}

int nvmlEventSetFree(struct set *set)
{
    free(set);
    return SUCCESS;
}

int nvmlSystemEventSetCreate(SystemSet *request)
{
    BEGIN(NO_DEVICE, "")
    request->set = make_set("system-event");
    return SUCCESS;
}

int nvmlSystemEventSetFree(SystemSet *request) { return nvmlEventSetFree(request->set); }
int nvmlSystemRegisterEvents(SystemRegister *request) { return request->set ? SUCCESS : INVALID_ARGUMENT; }

int nvmlSystemEventSetWait(SystemWait *request)
{
    struct line *line = await(request->set, "system-event", request->milliseconds);
    if (!line)
        return TIMEOUT;
    const char *words = line->words;
    request->count = 1;
    request->events->kind = number(&words);
    request->events->gpu = number(&words);
    return SUCCESS;
}
