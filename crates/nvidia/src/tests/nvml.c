/* A management library that knows the one device of driver.c, and counts how often it is started. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_FOUND = 6 };
typedef int result;

/* One byte for each start, in the folder that FAKE_DRIVER names. */
result nvmlInit_v2(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/nvml_starts", getenv("FAKE_DRIVER"));
  FILE *file = fopen(path, "a");
  if (file) { fputc('.', file); fclose(file); }
  return SUCCESS;
}
result nvmlShutdown(void) { return SUCCESS; }
result nvmlSystemGetDriverVersion(char *version, unsigned len) { strncpy(version, "580.0.1", len); return SUCCESS; }
result nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  static int one;
  *device = &one;
  return strcmp(uuid, "GPU-07070707-0707-0707-0707-070707070707") ? NOT_FOUND : SUCCESS;
}
result nvmlDeviceGetName(void *device, char *name, unsigned len) { strncpy(name, "Fake", len); return SUCCESS; }
result nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) { *celsius = 42; return SUCCESS; }
result nvmlDeviceGetPcieThroughput(void *device, unsigned counter, unsigned *value) { *value = 7; return SUCCESS; }
