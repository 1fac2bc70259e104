/* A management library that has every GPU that it is asked for, and tells events. Files beside it say what happens:
   "event" has a line "UUID TYPE DATA", and is removed when a wait has given it; "lost" has the UUIDs of GPUs that have
   fallen off the bus. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, RESOURCES = 23, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { SUPPORTED = 0x1 | 0x2 | 0x8, DEVICES = 64, STEP_US = 5000 };
typedef int result;
typedef struct { char uuid[64]; unsigned long long registered; } device;
typedef struct { device *of; unsigned long long type, data; unsigned instances[2]; } event;

static device devices[DEVICES];
static int set;

static char *beside(char *path, const char *name) {
  Dl_info info;
  char own[4096];
  dladdr((void *)devices, &info);
  strcpy(own, info.dli_fname);
  sprintf(path, "%s/%s", dirname(own), name);
  return path;
}

static int is_lost(const char *uuid) {
  char path[4200], line[64];
  FILE *file = fopen(beside(path, "lost"), "r");
  int lost = 0;
  while (file && fscanf(file, "%63s", line) == 1) lost |= !strcmp(line, uuid);
  if (file) fclose(file);
  return lost;
}

result nvmlInit_v2(void) { return SUCCESS; }
result nvmlShutdown(void) { return SUCCESS; }
result nvmlDeviceGetHandleByUUID(const char *uuid, device **found) {
  for (int i = 0; i < DEVICES; i++) {
    if (!devices[i].uuid[0]) strcpy(devices[i].uuid, uuid);
    if (!strcmp(devices[i].uuid, uuid)) { *found = &devices[i]; return SUCCESS; }
  }
  return RESOURCES;
}
result nvmlDeviceGetTemperature(device *of, unsigned sensor, unsigned *celsius) {
  *celsius = 42;
  return is_lost(of->uuid) ? GPU_IS_LOST : SUCCESS;
}
result nvmlEventSetCreate(void **made) { *made = &set; return SUCCESS; }
result nvmlEventSetFree(void *freed) { return freed == &set ? SUCCESS : INVALID_ARGUMENT; }
result nvmlDeviceGetSupportedEventTypes(device *of, unsigned long long *types) { *types = SUPPORTED; return SUCCESS; }
result nvmlDeviceRegisterEvents(device *of, unsigned long long types, void *in) {
  if (types & ~(unsigned long long)SUPPORTED) return NOT_SUPPORTED;
  of->registered |= types;
  return in == &set ? SUCCESS : INVALID_ARGUMENT;
}
result nvmlEventSetWait_v2(void *of, event *told, unsigned timeout_ms) {
  char path[4200], uuid[64];
  for (unsigned waited_us = 0;; waited_us += STEP_US) {
    FILE *file = fopen(beside(path, "event"), "r");
    int fields = file ? fscanf(file, "%63s %llu %llu", uuid, &told->type, &told->data) : 0;
    if (file) fclose(file);
    if (fields == 3) {
      unlink(path);
      nvmlDeviceGetHandleByUUID(uuid, &told->of);
      if (told->of->registered & told->type) return SUCCESS;
    }
    if (waited_us / 1000 >= timeout_ms) return TIMEOUT;
    usleep(STEP_US);
  }
}
