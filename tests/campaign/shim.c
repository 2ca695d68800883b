/* A library to preload: it counts the operations on files below one folder, and at a chosen one kills the process or
   makes the operation fail. shim_arm(at, what) chooses: 0 only counts, 1 kills before the operation, 2 says that the
   disk is full, 3 that it gave an error, from that operation on for `times` operations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long count;
static long chosen = -1, most = 1;
static int action;
static char under[4096];

void shim_arm(const char *folder, long at, int what, long times) {
    snprintf(under, sizeof under, "%s", folder);
    chosen = at, action = what, most = times;
    atomic_store(&count, 0);
}

long shim_count(void) { return atomic_load(&count); }

/* Whether an operation on this path fails; the process may not come back. */
static int fails(const char *path) {
    if (!under[0] || !path || strncmp(path, under, strlen(under))) return 0;
    long now = atomic_fetch_add(&count, 1);
    if (!action || now < chosen || now >= chosen + most) return 0;
    if (action == 1) kill(getpid(), SIGKILL);
    errno = action == 2 ? ENOSPC : EIO;
    return 1;
}

static int fails_at(int fd) {
    char link[64], path[4096];
    if (!under[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return fails(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) { return fails_at(fd) ? -1 : REAL(write)(fd, data, n); }
ssize_t pwrite(int fd, const void *d, size_t n, off_t o) { return fails_at(fd) ? -1 : REAL(pwrite)(fd, d, n, o); }
ssize_t pwrite64(int fd, const void *d, size_t n, off64_t o) { return fails_at(fd) ? -1 : REAL(pwrite64)(fd, d, n, o); }
int fsync(int fd) { return fails_at(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails_at(fd) ? -1 : REAL(fdatasync)(fd); }
int ftruncate(int fd, off_t n) { return fails_at(fd) ? -1 : REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { return fails_at(fd) ? -1 : REAL(ftruncate64)(fd, n); }
int rename(const char *a, const char *b) { return fails(b) ? -1 : REAL(rename)(a, b); }
int unlink(const char *a) { return fails(a) ? -1 : REAL(unlink)(a); }
int rmdir(const char *a) { return fails(a) ? -1 : REAL(rmdir)(a); }
int mkdir(const char *a, mode_t mode) { return fails(a) ? -1 : REAL(mkdir)(a, mode); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return flags & (O_WRONLY | O_RDWR | O_CREAT) && fails(path) ? -1 : REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
