// Two threads retain the primary context, use it and release it, beside two that retain and release it, in rounds that
// begin together and with no holder: primary_holders use|reset ROUNDS. With `reset` a fifth thread resets the context meanwhile, so that calls may fail; afterwards all is right.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// No two threads' memory is of one mapping.
enum { THREADS = 4, USERS = 2, BYTES = 64, ALLOCATED_BYTES = 4 << 20 };
enum { TURNS = 30, DELAY_STEPS = 100, RESET_EVERY_US = 5000 };

static int (*retain)(void **, int), (*release)(int), (*reset)(int), (*set_current)(void *);
static int (*allocate)(unsigned long *, size_t), (*fill)(unsigned long, unsigned char, size_t, void *);
static int (*copy)(void *, unsigned long, size_t), (*synchronize)(void), (*free_memory)(unsigned long);
static atomic_int rounds, wrong, done;
static pthread_barrier_t begins;

static void check(const char *what, int status)
{
    if (status && atomic_fetch_add(&wrong, 1) < 5) fprintf(stderr, "%s: %d\n", what, status);
}

static void use(unsigned char value)
{
    void *context;
    unsigned long memory = 0;
    unsigned char back[BYTES], expected[BYTES];
    check("retain", retain(&context, 0));
    check("set current", set_current(context));
    check("allocate", allocate(&memory, ALLOCATED_BYTES));
    check("fill", fill(memory, value, BYTES, NULL));
    check("synchronize", synchronize());
    check("copy", copy(back, memory, BYTES));
    memset(expected, value, BYTES);
    check("bytes", memcmp(back, expected, BYTES) != 0);
    check("free", free_memory(memory));
    check("release", release(0));
}

static void *takes_part(void *number)
{
    for (int round = 0; round < rounds; round++) {
        void *context;
        pthread_barrier_wait(&begins);
        if ((long)number < USERS) {
            // The others are in any of their steps.
            for (volatile int step = 0; step < round % DELAY_STEPS * 100; step++) continue;
            use((unsigned char)(round * USERS + (long)number));
            continue;
        }
        for (int turn = 0; turn < TURNS; turn++) {
            check("retain", retain(&context, 0));
            check("release", release(0));
        }
    }
    return NULL;
}

static void *resets(void *unused)
{
    while (!done) {
        reset(0);
        usleep(RESET_EVERY_US);
    }
    return unused;
}

#define FIND(function, name) (*(void **)&function = dlsym(library, name))

int main(int count, char **arguments)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*initialise)(unsigned), (*state)(int, unsigned *, int *), is_active = 1;
    if (count < 3 || !library) return 2;
    FIND(retain, "cuDevicePrimaryCtxRetain"), FIND(release, "cuDevicePrimaryCtxRelease_v2");
    FIND(reset, "cuDevicePrimaryCtxReset_v2"), FIND(set_current, "cuCtxSetCurrent");
    FIND(allocate, "cuMemAlloc_v2"), FIND(fill, "cuMemsetD8Async"), FIND(copy, "cuMemcpyDtoH_v2");
    FIND(synchronize, "cuCtxSynchronize"), FIND(free_memory, "cuMemFree_v2");
    FIND(initialise, "cuInit"), FIND(state, "cuDevicePrimaryCtxGetState");
    rounds = atoi(arguments[2]);
    if (initialise(0)) return 2;
    pthread_t threads[THREADS], resetting;
    pthread_barrier_init(&begins, NULL, THREADS);
    int is_reset = strcmp(arguments[1], "reset") == 0;
    if (is_reset) pthread_create(&resetting, NULL, resets, NULL);
    for (long number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, takes_part, (void *)number);
    for (int number = 0; number < THREADS; number++) pthread_join(threads[number], NULL);
    done = 1;
    if (is_reset) pthread_join(resetting, NULL), wrong = 0;
    unsigned flags;
    check("state", state(0, &flags, &is_active));
    check("active", is_active);
    for (int value = 1; value < 3; value++) use(value);
    if (wrong) return fprintf(stderr, "%d wrong\n", wrong), 1;
    return puts("right"), 0;
}
