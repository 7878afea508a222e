/* What the driver is to say, from the file that $FAKE_NVML_SCENARIO names; read again when another takes its place.

   A line is SCOPE KEY WORDS. The scope is a GPU's index, INDEX.SLOT for a MIG device of it, `system` for what belongs
   to no GPU, or * for every GPU and the system that have no such line of their own. The key is a function's name, or
   that and :ARGUMENT, or field:ID, field:ID:SCOPE, field:ID:all and field:ID:each, or gpm:ID and gpm:ID:INSTANCE; what
   no line names is NOT_SUPPORTED. Words are numbers, of which 100+5 is 100 and 5 more each second since `system epoch`
   (before that of a field stands its type: d u l L s i), or a text, or an action:

     status N    the function answers N            hang        it never returns
     crash N     zeros, SIGSEGV at the Nth call     deaf        nor listens to SIGTERM while it does not
     exit N      zeros, exit(1) at the Nth call

   The key * acts in every function of its scope, and `delay` has the seconds that each of them takes. */

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, VERSION_MISMATCH = 18, ARGUMENT_VERSION_MISMATCH = 25 };

struct line { char *scope, *key, *words; unsigned calls; };
struct table { struct stat file; double epoch; size_t count; struct line *lines; };

/* Tables are never freed: another thread may stand in a function that reads the one before. */
static struct table *volatile newest;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int compare(const void *left, const void *right)
{
    const struct line *one = left, *other = right;
    int order = strcmp(one->key, other->key);
    return order ? order : strcmp(one->scope, other->scope);
}

static struct line *exactly(const struct table *table, const char *scope, const char *key)
{
    struct line wanted = {(char *)scope, (char *)key, NULL, 0};
    return bsearch(&wanted, table->lines, table->count, sizeof wanted, compare);
}

static struct line *find(const struct table *table, const char *scope, const char *key)
{
    struct line *found = exactly(table, scope, key);
    return found || strchr(scope, '.') ? found : exactly(table, "*", key);
}

static struct table *read_table(FILE *file)
{
    struct table *table = calloc(1, sizeof *table);
    char text[16384], *scope, *key, *words, *rest;
    fstat(fileno(file), &table->file);
    while (fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = 0;
        if (!(scope = strtok_r(text, " ", &rest)) || *scope == '#' || !(key = strtok_r(NULL, " ", &rest)))
            continue;
        words = rest + strspn(rest, " ");
        table->lines = realloc(table->lines, (table->count + 1) * sizeof *table->lines);
        table->lines[table->count++] = (struct line){strdup(scope), strdup(key), strdup(words), 0};
    }
    qsort(table->lines, table->count, sizeof *table->lines, compare);
    struct line *epoch = exactly(table, "system", "epoch");
    table->epoch = epoch ? atof(epoch->words) : now();
    return table;
}

/* The table of now, or NULL where there is no such file. It is not looked for more often than each tenth of a
   millisecond, so that a benchmark measures our calls and not that. */
static struct table *current(void)
{
    static __thread double looked;
    const char *path = getenv("FAKE_NVML_SCENARIO");
    struct stat file;
    double moment = now();
    if (newest && moment - looked < 1e-4)
        return newest;
    if (!path || stat(path, &file))
        return NULL;
    looked = moment;
    pthread_mutex_lock(&reading);
    if (!newest || newest->file.st_ino != file.st_ino || newest->file.st_mtim.tv_nsec != file.st_mtim.tv_nsec
        || newest->file.st_mtim.tv_sec != file.st_mtim.tv_sec) {
        FILE *opened = fopen(path, "r");
        if (opened) {
            newest = read_table(opened);
            fclose(opened);
        }
    }
    pthread_mutex_unlock(&reading);
    return newest;
}

/* Does what the line says, where that is an action: the status to answer then, and otherwise -1. */
static int act(struct line *line)
{
    char action[8];
    unsigned number = 1;
    if (!line || sscanf(line->words, "%7s %u", action, &number) < 1)
        return -1;
    if (!strcmp(action, "status"))
        return number;
    if (!strcmp(action, "crash") && ++line->calls >= number)
        kill(getpid(), SIGSEGV);
    if (!strcmp(action, "exit") && ++line->calls >= number)
        exit(1);
    if (!strcmp(action, "deaf"))
        signal(SIGTERM, SIG_IGN);
    if (!strcmp(action, "deaf") || !strcmp(action, "hang"))
        for (;;)
            pause();
    return -1;
}

static long double number(const char **words)
{
    /* A long double holds every 64-bit integer. */
    char *end;
    long double value = strtold(*words, &end);
    if (*end == '+')
        value += (int64_t)(strtold(end + 1, &end) * (now() - newest->epoch));
    *words = end == *words ? end + strlen(end) : end + strspn(end, " ");
    return value;
}
