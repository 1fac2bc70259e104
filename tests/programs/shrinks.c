// Preloaded: pinned memory is made without seals, kept, and taken away when asked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int kept[64];
static int count;

int memfd_create(const char *name, unsigned int flags)
{
    int fd = (int)syscall(SYS_memfd_create, name, getenv("SEALED") ? flags : flags & ~MFD_ALLOW_SEALING);
    if (fd >= 0 && count < 64) kept[count++] = dup(fd);
    return fd;
}

int fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    if (command == F_ADD_SEALS && !getenv("SEALED")) return 0;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

// How much was made, and how much of it has shrunk.
int take_away(int *made)
{
    int shrunk = 0;
    for (int i = 0; i < count; i++) shrunk += ftruncate(kept[i], 0) == 0;
    *made = count;
    return shrunk;
}
