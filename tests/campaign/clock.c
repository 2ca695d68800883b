/* A library to preload: the clock of the day is a month ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

#define MONTH (30 * 86400)

int clock_gettime(clockid_t clock, struct timespec *found) {
    int code = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, found);
    if (!code && clock == CLOCK_REALTIME) found->tv_sec += MONTH;
    return code;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    int code = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(found, zone);
    if (!code) found->tv_sec += MONTH;
    return code;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
