/* What happens between a request's submission and its event: files are closed, signals come, other threads submit. */
#include "aio.h"
#include <sys/resource.h>

static char buffer[1 << 16] __attribute__((aligned(4096)));

/* Submits one, does that to its descriptor, and then asks for the result. */
static long outcome_after(context ctx, struct iocb iocb, void (*change)(int))
{
    struct io_event event = {0};
    int code = submit_one(ctx, &iocb);
    if (code != 1)
        return code - 100000;
    change(iocb.fd);
    code = io_getevents(ctx, 1, 1, &event, NULL);
    return code == 1 ? (long)event.res : code - 200000;
}

static void nothing(int fd) { (void)fd; }
static void closes(int fd) { close(fd); }

static void becomes_other(int fd)
{
    close(fd);
    CHECK(file_of("other", O_RDWR, 0) == fd, 1);
}

/* A request is of the file that it was submitted for, whatever its number stands for later. */
static void reused(int in_use)
{
    enum { SIZE = 4096, OTHER = 65536 };
    close(filled("other", O_RDONLY, OTHER));
    void (*changes[])(int) = {nothing, closes, becomes_other};
    for (int i = 0; i < 3; i++)
        for (int direct = 0; direct < 2; direct++)
            for (int offset = 0; offset <= SIZE; offset += SIZE) {
                context ctx = made(8, in_use);
                /* Met before, or not. */
                for (int met = 0; met < 2; met++) {
                    int fd = filled("short", O_RDWR | (direct ? O_DIRECT : 0), SIZE);
                    if (met)
                        CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, 512, 0)), 512);
                    memset(buffer, 99, sizeof buffer);
                    CHECK(outcome_after(ctx, iocb_of(PREAD, fd, buffer, 2 * SIZE, offset), changes[i]), SIZE - offset);
                    int wrong = 0;
                    /* A direct read may clear what is beyond the file's end. */
                    for (int k = SIZE - offset; k < 2 * SIZE; k++)
                        wrong += buffer[k] != 99 && buffer[k] != 0;
                    CHECK(wrong, 0);
                    if (changes[i] != closes)
                        close(fd);
                }
                CHECK(io_destroy(ctx), 0);
            }
}

static volatile int handled;
static void on_signal(int number) { handled += number != 0; }

/* A write that is short stays short: a program that looks at the result decides what becomes of the rest. */
static void limited(int in_use)
{
    int fd = filled("limited", O_RDWR | O_DIRECT, 65536);
    context ctx = made(8, in_use);
    signal(SIGXFSZ, on_signal);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (int i = 0; i < 3; i++)
        CHECK(outcome(ctx, iocb_of(PWRITE, fd, buffer, 8192, 0)), 8192);
    handled = 0, limit = before, limit.rlim_cur = 16384;
    fflush(stdout);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit), 0);
    long written = outcome(ctx, iocb_of(PWRITE, fd, buffer, 8192, 12288));
    CHECK(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK(written, 4096);
    CHECK(handled, 0);
    CHECK(io_destroy(ctx), 0);
    close(fd);
}

/* One signal ends a wait for two events, of which one is there; no event, and time, do not. */
static void interrupted(int in_use)
{
    int fd = filled("interrupted", O_RDONLY, 4096);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    struct timespec minutes = {300, 0}, tenth = {0, 100000000};
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct io_event events[4];
    for (int timed = 0; timed < 2; timed++) {
        struct other other = {.ctx = made(8, in_use), .timeout = timed ? &minutes : NULL};
        CHECK(outcome(other.ctx, iocb), 512);
        start(&other, waits_for_two);
        /* In the page cache: its event is there when this returns. */
        CHECK(submit_one(other.ctx, &iocb), 1);
        until_within(&other);
        handled = 0;
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        CHECK(ended(&other), 1);
        CHECK(handled, 1);
        CHECK(submit_one(other.ctx, &iocb), 1);
        CHECK(io_getevents(other.ctx, 2, 4, events, &tenth), 1);
        CHECK(io_destroy(other.ctx), 0);
    }
    close(fd);
}

static int pipe_of_poll[2];
static struct iocb poll_iocb;
static context polling;

static void *polls_and_waits(void *argument)
{
    struct other *other = argument;
    struct io_event event;
    if (submit_one(polling, &poll_iocb) != 1)
        return NULL;
    other->id = syscall(SYS_gettid);
    return (void *)(long)io_getevents(other->ctx, 1, 1, &event, NULL);
}

/* What becomes ready in one context does not end the wait in another. */
static void elsewhere(int in_use)
{
    int fd = filled("elsewhere", O_RDONLY, 4096);
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct io_event event;
    polling = made(8, 1);
    CHECK(pipe(pipe_of_poll), 0);
    poll_iocb = iocb_of(POLL, pipe_of_poll[0], (void *)POLLIN, 0, 0);
    struct other other = {.ctx = made(8, in_use)};
    start(&other, polls_and_waits);
    CHECK(write(pipe_of_poll[1], "x", 1), 1);
    CHECK(io_getevents(polling, 1, 1, &event, NULL), 1);
    CHECK(event.res & POLLIN, POLLIN);
    CHECK(submit_one(other.ctx, &iocb), 1);
    CHECK(ended(&other), 1);
    CHECK(io_destroy(other.ctx), 0);
    CHECK(io_destroy(polling), 0);
    close(fd), close(pipe_of_poll[0]), close(pipe_of_poll[1]);
}

static void *submits(void *argument)
{
    struct other *other = argument;
    other->id = syscall(SYS_gettid);
    return (void *)(long)submit_one(other->ctx, other->iocb);
}

/* A thread whose io_submit waits for a pipe keeps no other from submitting what it waits for. */
static void pipes(int in_use)
{
    int ends[2], fd = filled("pipes", O_RDONLY, 4096), direct = file_of("pipes", O_RDONLY | O_DIRECT, 0);
    CHECK(pipe(ends), 0);
    context ctx = made(16, in_use);
    struct io_event events[8];
    struct iocb reading = iocb_of(PREAD, ends[0], buffer, 3, 0), writing = iocb_of(PWRITE, ends[1], "abc", 3, 0);
    struct other other = {.ctx = ctx, .iocb = &reading};
    start(&other, submits);
    CHECK(submit_one(ctx, &writing), 1);
    CHECK(ended(&other), 1);
    CHECK(io_getevents(ctx, 2, 8, events, NULL), 2);
    CHECK(events[0].res + events[1].res, 6);
    /* In one batch with others, and with one that has all that follow go the kernel's way. */
    struct iocb cached[2], past[2], *list[6] = {&writing, &cached[0], &past[0], &reading, &cached[1], &past[1]};
    int signal = eventfd(0, EFD_NONBLOCK);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            cached[i] = iocb_of(PREAD, fd, buffer + 4096 * (i + 1), 512, 0);
            past[i] = iocb_of(PREAD, direct, buffer + 4096 * (i + 3), 512, 0);
        }
        if (round)
            past[0].flags = RESFD, past[0].resfd = signal;
        CHECK(io_submit(ctx, 6, list), 6);
        CHECK(io_getevents(ctx, 6, 8, events, NULL), 6);
        long sum = 0;
        for (int i = 0; i < 6; i++)
            sum += events[i].res;
        CHECK(sum, 4 * 512 + 6);
    }
    CHECK(io_destroy(ctx), 0);
    close(fd), close(direct), close(ends[0]), close(ends[1]), close(signal);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"reused", reused},       {"limited", limited}, {"interrupted", interrupted},
        {"elsewhere", elsewhere}, {"pipes", pipes},     {NULL, NULL},
    };
    /* Whoever waits for himself waits for ever. */
    alarm(60);
    return run_cases(cases, count, arguments);
}
