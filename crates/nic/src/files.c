// Preloaded into programs: files of an adapter, which programs look for under /sys, are in a folder of `outboard nic
// run`. Paths of other files are passed on as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <dirent.h>

static const char *const FOLDERS[] = {"/sys/class/infiniband/", "/sys/kernel/mm/memory_peers/"};

// Returns the path of the file that is meant; `room` has PATH_MAX bytes.
static const char *placed(const char *path, char *room)
{
    const char *folder = getenv("OUTBOARD_NIC_FILES");
    if (!path || !folder)
        return path;
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++) {
        if (strncmp(path, FOLDERS[i], strlen(FOLDERS[i])) != 0)
            continue;
        int bytes = snprintf(room, PATH_MAX, "%s%s", folder, path);
        return bytes > 0 && bytes < PATH_MAX ? room : path;
    }
    return path;
}

// Declares `real`, the C library's function, which is looked up at the first call, and `at`, the path that it is given.
// By its version: programs' libraries have functions of their own in place of dlsym.
#define PASS_ON(name) PASS_ON_OF(name, "GLIBC_2.2.5")
#define PASS_ON_OF(name, version) \
    static __typeof__(&name) real; \
    char room[PATH_MAX]; \
    const char *at = placed(path, room); \
    if (!real) \
        real = (__typeof__(&name))dlvsym(RTLD_NEXT, #name, version)

// The mode of a file that may be made.
#define MODE \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...)
{
    MODE
    PASS_ON(open);
    return real(at, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE
    PASS_ON(open64);
    return real(at, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    PASS_ON(fopen);
    return real(at, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    PASS_ON(fopen64);
    return real(at, mode);
}

int access(const char *path, int mode)
{
    PASS_ON(access);
    return real(at, mode);
}

char *realpath(const char *path, char *resolved)
{
    PASS_ON_OF(realpath, "GLIBC_2.3");
    return real(at, resolved);
}

DIR *opendir(const char *path)
{
    PASS_ON(opendir);
    return real(at);
}
