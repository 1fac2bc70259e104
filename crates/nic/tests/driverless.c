// Looks for the driver's functions where no driver is loaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    const char *names[] = {"cuMemHostRegister_v2", "cuGetProcAddress", "cuGetProcAddress_v2"};
    void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
    for (int name = 0; name < 3; ++name) {
        for (int handle = 0; handle < 3; ++handle) {
            dlerror();
            if (dlsym(handles[handle], names[name]) || !dlerror()) {
                printf("%s, handle %d\n", names[name], handle);
                return 1;
            }
        }
    }
    puts("right");
    return 0;
}
