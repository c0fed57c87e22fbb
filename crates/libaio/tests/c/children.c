/* Contexts and children: what a child finds, and what one leaves that is killed. */
#include "aio.h"

static char buffer[4096] __attribute__((aligned(4096)));

static void children(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("children", O_RDONLY, 4096);
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0), *list = &iocb;
    struct io_event event;
    struct timespec soon = {0, 1000000};
    CHECK(io_submit(ctx, 1, &list), 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(io_submit(ctx, 1, &list), -EINVAL);
        CHECK(io_getevents(ctx, 1, 1, &event, &soon), -EINVAL);
        CHECK(io_cancel(ctx, &iocb, &event), -EINVAL);
        CHECK(io_destroy(ctx), -EINVAL);
        ctx = made(8, 1);
        CHECK(outcome(ctx, iocb), 512);
        CHECK(io_destroy(ctx), 0);
        fflush(stdout);
        _exit(failed);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, 1);
    CHECK(status, 0);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(outcome(ctx, iocb), 512);
    CHECK(io_destroy(ctx), 0);
}

enum { PLACES = 32, BLOCK = 4096, AT_ONCE = 4, KILLED = 5 };

/* Writes blocks again and again, past the page cache where that can be, and tells up to which they are written. */
static void write_on(int fd, volatile long *written)
{
    static char blocks[AT_ONCE][BLOCK] __attribute__((aligned(4096)));
    struct iocb iocbs[AT_ONCE], *list[AT_ONCE];
    struct io_event events[AT_ONCE];
    int ends[2], waited = pipe(ends);
    context ctx = made(32, 1);
    /* One more is in flight for as long as it lives. */
    struct iocb poll = {.opcode = POLL, .fd = ends[0], .buf = POLLIN};
    if (waited || submit_one(ctx, &poll) != 1)
        _exit(1);
    for (long number = 0;; number += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            for (size_t at = 0; at < BLOCK / sizeof(long); at++)
                ((long *)blocks[i])[at] = number + i;
            iocbs[i] = iocb_of(PWRITE, fd, blocks[i], BLOCK, (number + i) % PLACES * BLOCK);
            list[i] = &iocbs[i];
        }
        if (io_submit(ctx, AT_ONCE, list) != AT_ONCE ||
            io_getevents(ctx, AT_ONCE, AT_ONCE, events, NULL) != AT_ONCE)
            _exit(1);
        for (int i = 0; i < AT_ONCE; i++)
            if (events[i].res != BLOCK)
                _exit(1);
        *written = number + AT_ONCE;
    }
}

/* Children that are killed with requests in flight: what was written is there, and their parent goes on. */
static void killed(int in_use)
{
    context ctx = made(8, in_use);
    int own = filled("parent", O_RDONLY, 4096);
    volatile long *written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(written != MAP_FAILED, 1);
    for (int round = 0; round < KILLED; round++) {
        close(file_of("killed", O_RDWR, PLACES * BLOCK));
        int fd = file_of("killed", O_RDWR | O_DIRECT, 0);
        *written = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0)
            write_on(fd, written);
        close(fd);
        int status = 0;
        while (*written < 3 * PLACES && waitpid(child, &status, WNOHANG) == 0)
            usleep(1000 + 700 * round);
        CHECK(kill(child, SIGKILL), 0);
        CHECK(waitpid(child, &status, 0) == child, 1);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
        long block[BLOCK / sizeof(long)], wrong = 0;
        fd = file_of("killed", O_RDONLY, 0);
        for (long number = *written - PLACES; number < *written; number++) {
            ssize_t count = pread(fd, block, BLOCK, number % PLACES * BLOCK);
            /* Or what it was about to write. */
            int is_there = count == BLOCK && (block[0] == number || block[0] == number + PLACES);
            wrong += !is_there || block[0] != block[BLOCK / sizeof(long) - 1];
        }
        CHECK(wrong, 0);
        close(fd);
        CHECK(outcome(ctx, iocb_of(PREAD, own, buffer, 512, 0)), 512);
    }
    munmap((void *)written, 4096);
    CHECK(io_destroy(ctx), 0);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {{"children", children}, {"killed", killed}, {NULL, NULL}};
    return run_cases(cases, count, arguments);
}
