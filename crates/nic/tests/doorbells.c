// Registers a doorbell's page as I/O memory in each way by which programs get the driver's function.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALL = 1 | 2 | 4, WITHOUT = 1 | 2, VERSION = 12000 };
typedef int (*Register)(void *, size_t, unsigned);
typedef int (*Find)(const char *, void **, int, unsigned long long);
typedef int (*FindWithStatus)(const char *, void **, int, unsigned long long, int *);

// Linked with the driver.
int cuMemHostRegister_v2(void *, size_t, unsigned);
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *);
extern unsigned registered_with;

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            return 1; \
        } \
    } while (0)

static void *doorbell, *ordinary;

static int takes_doorbells(Register call)
{
    registered_with = ~0u;
    CHECK(call(doorbell, 4096, ALL) == 0 && registered_with == WITHOUT);
    registered_with = ~0u;
    // Other memory is refused, and registered as ordinary memory if that is asked for.
    CHECK(call(ordinary, 4096, ALL) == 1 && registered_with == ~0u);
    CHECK(call((char *)doorbell - 4096, 8192, ALL) == 1 && call(doorbell, 4097, ALL) == 1 && registered_with == ~0u);
    CHECK(call(ordinary, 4096, WITHOUT) == 0 && registered_with == WITHOUT);
    return 0;
}

int main(void)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, 0);
    CHECK(uar);
    doorbell = (void *)((uintptr_t)uar->reg_addr & ~(uintptr_t)4095), ordinary = aligned_alloc(4096, 8192);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
    CHECK(driver && !takes_doorbells(cuMemHostRegister_v2));
    CHECK(!takes_doorbells((Register)dlsym(driver, "cuMemHostRegister_v2")));
    CHECK(!takes_doorbells((Register)dlsym(RTLD_DEFAULT, "cuMemHostRegister_v2")));
    int status = 1;
    CHECK(cuGetProcAddress_v2("cuMemHostRegister", &found, VERSION, 0, &status) == 0 && !takes_doorbells((Register)found));
    FindWithStatus newer = (FindWithStatus)dlsym(driver, "cuGetProcAddress_v2");
    CHECK(newer("cuMemHostRegister", &found, VERSION, 0, &status) == 0 && status == 0 && !takes_doorbells((Register)found));
    CHECK(newer("cuGetProcAddress", &found, VERSION, 0, &status) == 0);
    CHECK(((FindWithStatus)found)("cuMemHostRegister", &found, VERSION, 0, &status) == 0 && !takes_doorbells((Register)found));
    Find older = (Find)dlsym(driver, "cuGetProcAddress");
    CHECK(older("cuMemHostRegister", &found, 11000, 0) == 0 && !takes_doorbells((Register)found));
    CHECK(older("cuGetProcAddress", &found, 11000, 0) == 0);
    CHECK(((Find)found)("cuMemHostRegister", &found, 11000, 0) == 0 && !takes_doorbells((Register)found));
    // What else programs look up is as it was.
    CHECK(newer("cuNothing", &found, VERSION, 0, &status) == 500 && dlsym(driver, "cuNothing") == NULL && dlerror());
    CHECK(dlsym(RTLD_DEFAULT, "puts") == (void *)puts && dlsym(RTLD_NEXT, "puts") == (void *)puts);
    CHECK(dlsym(RTLD_NEXT, "main") == NULL);
    puts("right");
    return 0;
}
