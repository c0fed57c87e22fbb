/* A session in a loop of the program's own, which sleeps in epoll_wait: reads blocks at a depth from any volume, while a
 * clock ticks by another descriptor.
 *
 *   cc poll.c -lnvlane -o poll
 *   ./poll /dev/ng0n1                   or a file, mem:1G, tcp://192.0.2.1:4420/NQN?ns=1
 *
 * Exit status: 0, or 1 when anything failed, which standard error says in words.
 */
#include <errno.h>
#include <nvlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { READ = 0x02, DEPTH = 8, COMMANDS = 64 };

static int sent, ended, ticks;
static unsigned long long sum;

static int failed(const char *doing)
{
    fprintf(stderr, "poll: %s: %s\n", doing, nvl_error());
    return 1;
}

static int failed_call(const char *doing)
{
    fprintf(stderr, "poll: %s: %s\n", doing, strerror(errno));
    return 1;
}

/* Submits as many Reads as there may be, each into its own part of the memory. */
static int submit(struct nvl_volume *volume, unsigned char *memory, const struct nvl_limits *limits)
{
    while (sent < COMMANDS && sent - ended < DEPTH) {
        unsigned long long slba = sent % limits->blocks;
        struct nvl_command command = {
            .opcode = READ,
            .cdw10 = (uint32_t)slba,
            .cdw11 = (uint32_t)(slba >> 32),
            .cdw12 = 0, /* one block, zero-based */
            .data = memory + (size_t)sent * limits->block_bytes,
            .data_len = limits->block_bytes,
            .token = sent,
        };
        if (nvl_submit(volume, &command) < 0)
            return failed("submitting a Read");
        sent++;
    }
    return 0;
}

/* Takes what has completed. */
static int reap(struct nvl_session *session, const unsigned char *memory, const struct nvl_limits *limits)
{
    struct nvl_completion done[DEPTH];
    int count = nvl_reap(session, done, DEPTH);

    if (count < 0)
        return failed("reaping");
    for (int at = 0; at < count; at++, ended++) {
        if (done[at].status != 0) {
            char text[128];
            nvl_io_status_text(READ, done[at].status, text, sizeof(text));
            fprintf(stderr, "poll: Read: %s\n", text);
            return 1;
        }
        for (unsigned byte = 0; byte < limits->block_bytes; byte++)
            sum += memory[done[at].token * limits->block_bytes + byte];
    }
    return 0;
}

static int run(struct nvl_session *session, struct nvl_volume *volume, const struct nvl_limits *limits,
               unsigned char *memory, int loop, int clock)
{
    struct epoll_event event = {.events = EPOLLIN};
    const struct itimerspec each_ms = {{0, 1000000}, {0, 1000000}};
    int fd = nvl_poll_fd(session);

    if (fd < 0)
        return failed("a descriptor to be polled");
    event.data.fd = fd;
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) < 0)
        return failed_call("epoll_ctl");
    event.data.fd = clock;
    if (timerfd_settime(clock, 0, &each_ms, NULL) < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, clock, &event) < 0)
        return failed_call("a clock");
    while (ended < COMMANDS) {
        if (submit(volume, memory, limits))
            return 1;
        /* The last before sleeping, each time: hands over what was submitted, and says whether one may sleep. */
        int ready = nvl_arm(session);
        if (ready < 0)
            return failed("before sleeping");
        int count = epoll_wait(loop, &event, 1, ready > 0 ? 0 : -1);
        if (count < 0 && errno != EINTR)
            return failed_call("epoll_wait");
        if (count > 0 && event.data.fd == clock) {
            uint64_t since;
            if (read(clock, &since, sizeof(since)) > 0)
                ticks += (int)since;
        }
        if (reap(session, memory, limits))
            return 1;
    }
    printf("read %d blocks of %u bytes, sum of their bytes %llu\n", ended, limits->block_bytes, sum);
    fprintf(stderr, "%d ticks meanwhile\n", ticks);
    return 0;
}

int main(int argc, char **argv)
{
    struct nvl_config config = {.size = sizeof(config), .depth = DEPTH};
    struct nvl_session *session = NULL;
    struct nvl_volume *volume = NULL;
    struct nvl_limits limits;
    unsigned char *memory = NULL;
    int loop = epoll_create1(EPOLL_CLOEXEC), clock = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), outcome = 1;

    if (argc != 2) {
        fprintf(stderr, "usage: poll VOLUME\n");
        return 1;
    }
    if (loop < 0 || clock < 0)
        return failed_call("a loop");
    if (nvl_session_new(&config, &session) < 0)
        return failed("making a session");
    if (nvl_open(session, argv[1], NVL_READ_ONLY, &volume) < 0)
        failed(argv[1]);
    else if (nvl_volume_limits(volume, &limits) < 0)
        failed("limits");
    else if ((memory = malloc((size_t)COMMANDS * limits.block_bytes)) == NULL)
        failed_call("memory");
    else
        outcome = run(session, volume, &limits, memory, loop, clock);
    close(loop); /* before the session: its descriptor is in there */
    close(clock);
    nvl_session_free(session); /* waits for what is in flight */
    if (volume)
        nvl_close(volume);
    free(memory);
    return outcome;
}
