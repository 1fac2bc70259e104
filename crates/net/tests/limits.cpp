// Two processes meet, of which the one that listens may make no file as long as their memory. Arguments: port, way.
#include "outboard/net.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

// Returns how it went: the way, or the error.
static std::string met(const std::string &address, bool listens)
{
    outboard_net *net;
    if (outboard_net_open(nullptr, &net) != 0) return outboard_net_message();
    outboard_net_queue_options options = {6, 0, 1, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    void *block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outboard_net_queue queue;
    outboard_net_window theirs;
    if (outboard_net_queue_create(net, block, bytes, &options, &queue) != 0) return outboard_net_message();
    if (outboard_net_meet(net, queue.qpn, address.c_str(), listens, 60000, nullptr, &theirs) != 0) return outboard_net_message();
    return outboard_net_way_of(net, queue.qpn);
}

static int said(const char *who, const std::string &what, const char *wanted)
{
    if (what.find(wanted) != std::string::npos) return 0;
    std::printf("%s: \"%s\", not \"%s\"\n", who, what.c_str(), wanted);
    return 1;
}

int main(int, char **values)
{
    std::string address = std::string("127.0.0.1:") + values[1];
    bool is_alone = std::strcmp(values[2], "shm") == 0;
    pid_t child = fork();
    if (child == 0) {
        const char *wanted = is_alone ? "the other process could not make memory to share: File too large" : "tcp";
        int wrong = said("connects", met(address, false), wanted);
        std::fflush(stdout);
        _exit(wrong);
    }
    rlimit limit = {1000000, 1000000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const char *wanted = is_alone ? "files of this process are limited to 1000000 bytes (ulimit -f)" : "tcp";
    int wrong = said("listens", met(address, true), wanted), status = -1;
    waitpid(child, &status, 0);
    return wrong || status != 0;
}
