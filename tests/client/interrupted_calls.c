/* A library for LD_PRELOAD: kills the process before, or in the middle of, one of the calls that change files, or lets them fail.
 *
 * `arm` begins. Calls are counted from then on: create, write, fsync, rename, mkdir, symlink, unlink, rmdir, and close of a file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_REPLACE = 1, LOST_ANSWERS = 2, NO_DIRECTORY_SYNC = 4 };

static struct {
  int armed, flags;
  long calls, kill_at, readonly_at, room;
  unsigned chance;
} now;

void arm(long kill_at, long readonly_at, long room, int flags, unsigned chance) {
  now.armed = 1, now.calls = 0, now.kill_at = kill_at, now.readonly_at = readonly_at, now.room = room;
  now.flags = flags, now.chance = chance;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int is_file(int fd) {
  struct stat about;
  return !fstat(fd, &about) && S_ISREG(about.st_mode);
}

/* Counts a call, which needs some bytes of room; returns -1 with errno if it has to fail. */
static int counted(long bytes) {
  if (!now.armed) return 0;
  if (++now.calls == now.kill_at) kill(getpid(), SIGKILL);
  if (now.readonly_at && now.calls >= now.readonly_at) return errno = EROFS, -1;
  if (now.room && (now.room -= bytes) <= 0 && bytes) return now.room = 1, errno = ENOSPC, -1;
  return 0;
}

static int opened(int at, const char *path, int flags, int mode) {
  REAL(openat64);
  if ((flags & O_CREAT) && counted(64)) return -1;
  return real(at, path, flags, mode);
}

#define OPEN(name, parameters, at)                                     \
  int name parameters {                                                \
    va_list rest;                                                      \
    va_start(rest, flags);                                             \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;  \
    va_end(rest);                                                      \
    return opened(at, path, flags, mode);                              \
  }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN(openat, (int at, const char *path, int flags, ...), at)
OPEN(openat64, (int at, const char *path, int flags, ...), at)

ssize_t write(int fd, const void *data, size_t size) {
  REAL(write);
  if (!now.armed || !is_file(fd)) return real(fd, data, size);
  if (now.calls + 1 == now.kill_at) real(fd, data, rand_r(&now.chance) % (size + 1));
  if (now.room && (long)size >= now.room && now.room > 1) return size = now.room - 1, now.room = 1, real(fd, data, size);
  return counted(size) ? -1 : real(fd, data, size);
}

int fsync(int fd) {
  REAL(fsync);
  if (counted(0)) return -1;
  if (now.armed && (now.flags & NO_DIRECTORY_SYNC) && !is_file(fd)) return errno = EINVAL, -1;
  return real(fd);
}

int close(int fd) {
  REAL(close);
  if (now.armed && is_file(fd)) counted(0);
  return real(fd);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  struct stat about;
  if (counted(0)) return -1;
  if (now.armed && (now.flags & NO_REPLACE) && !lstat(to, &about)) return errno = EEXIST, -1;
  int result = real(from, to);
  if (!result && now.armed && (now.flags & LOST_ANSWERS) && rand_r(&now.chance) % 3 == 0) return errno = ENOENT, -1;
  return result;
}

#define CALL(name, parameters, arguments, bytes) \
  int name parameters {                          \
    REAL(name);                                  \
    return counted(bytes) ? -1 : real arguments; \
  }
CALL(mkdir, (const char *path, mode_t mode), (path, mode), 64)
CALL(symlink, (const char *to, const char *path), (to, path), 64)
CALL(unlink, (const char *path), (path), 0)
CALL(unlinkat, (int at, const char *path, int flags), (at, path, flags), 0)
CALL(rmdir, (const char *path), (path), 0)
