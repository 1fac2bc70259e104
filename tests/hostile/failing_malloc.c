/* Preloaded into a server: in its workers, the allocation of the number in the file FAILING_MALLOC fails, counted from
 * the worker's start, and so do all after it. A worker reads the number once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static long left = -1;

__attribute__((constructor)) static void begin(void) {
    char text[4096] = {0};
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    long length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    close(file);
    /* The words of a command line end in zeros. */
    int is_worker = 0;
    for (const char *word = text; word < text + length; word += strlen(word) + 1)
        is_worker |= strcmp(word, "worker") == 0;
    if (!is_worker)
        return;
    const char *path = getenv("FAILING_MALLOC");
    char number[32] = {0};
    file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    if (read(file, number, sizeof number - 1) > 0)
        __atomic_store_n(&left, atol(number), __ATOMIC_SEQ_CST);
    close(file);
}

static int fails(void) {
    if (__atomic_load_n(&left, __ATOMIC_RELAXED) < 0)
        return 0;
    if (__atomic_load_n(&left, __ATOMIC_RELAXED) == 0 || __atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) <= 1) {
        __atomic_store_n(&left, 0, __ATOMIC_RELAXED);
        errno = ENOMEM;
        return 1;
    }
    return 0;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
