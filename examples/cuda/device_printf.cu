// printf from kernels: the text arrives on this process's standard output, at the latest with the synchronisation.
#include "check.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>

__constant__ char greeting[] = "from constant memory";

__global__ void formats()
{
    char built[4] = {'a', 'b', 'c', 0};
    printf("plain text, 100%%\n");
    printf("integers %d %i %u %x %X %o %c\n", -42, 7, 4000000000u, 0xbeef, 0xbeef, 8, 'z');
    printf("wide %lld %llu %llx %ld\n", -1234567890123ll, 18446744073709551615ull, 1ull << 40, 99l);
    printf("floats %f %.3f %e %g %10.2f|\n", 1.5f, 3.14159265, 1e-7, 0.0001, 2.0 / 3);
    printf("padded |%5d|%-5d|%05d|%+d|\n", 42, 42, 42, 42);
    printf("strings %s, %s, %-6s|\n", "literal", greeting, built);
    printf("mixed %d %f %d %lld %s %d\n", 1, 2.0, 3, 4ll, "five", 6);
}

__global__ void one_line_a_thread(int launch)
{
    printf("launch %d block %d thread %2d\n", launch, (int)blockIdx.x, (int)threadIdx.x);
}

// What `work` makes the device print: standard output goes to a file in the meantime.
static std::string printed_by(const std::function<void()>& work)
{
    std::fflush(stdout);
    std::FILE* file = std::tmpfile();
    int saved = dup(STDOUT_FILENO);
    if (file == nullptr || saved < 0 || dup2(fileno(file), STDOUT_FILENO) < 0) {
        std::perror("device_printf: redirecting standard output");
        std::exit(1);
    }
    work();
    std::fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    std::string text;
    std::rewind(file);
    for (int character; (character = std::fgetc(file)) != EOF;) text += (char)character;
    std::fclose(file);
    return text;
}

static std::vector<std::string> lines_of(const std::string& text)
{
    std::istringstream stream(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

static void check_formats()
{
    std::string text = printed_by([] {
        formats<<<1, 1>>>();
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
    });
    const char* want =
        "plain text, 100%\n"
        "integers -42 7 4000000000 beef BEEF 10 z\n"
        "wide -1234567890123 18446744073709551615 10000000000 99\n"
        "floats 1.500000 3.142 1.000000e-07 0.0001       0.67|\n"
        "padded |   42|42   |00042|+42|\n"
        "strings literal, from constant memory, abc   |\n"
        "mixed 1 2.000000 3 4 five 6\n";
    if (!expect(text == want, "one thread prints its lines in order, formatted as in C")) std::printf("got:\n%s", text.c_str());
}

// Threads may print in any order, but whole lines, each once, and an earlier launch of the stream before a later one.
static void check_many_threads()
{
    const int launches = 2, blocks = 3, threads = 40;
    std::vector<std::string> lines = lines_of(printed_by([=] {
        for (int launch = 0; launch < launches; ++launch) one_line_a_thread<<<blocks, threads>>>(launch);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
    }));
    expect(std::is_sorted(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) { return a.substr(0, 8) < b.substr(0, 8); }),
           "the launches print one after the other");
    std::vector<std::string> want;
    for (int launch = 0; launch < launches; ++launch)
        for (int block = 0; block < blocks; ++block)
            for (int thread = 0; thread < threads; ++thread) {
                char line[64];
                std::snprintf(line, sizeof line, "launch %d block %d thread %2d", launch, block, thread);
                want.push_back(line);
            }
    std::sort(lines.begin(), lines.end());
    std::sort(want.begin(), want.end());
    expect(lines == want, "%zu threads print one line each", want.size());
}

int main()
{
    std::printf("device_printf: text printed by kernels\n");
    check_formats();
    check_many_threads();
    formats<<<1, 1>>>();
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    return verdict("device_printf");
}
