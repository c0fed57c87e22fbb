/* Contexts and children: what a child finds, and what one leaves that is killed. */
#include "aio.h"
#include <sched.h>

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

static struct {
    context ctx;
    int fd;
    volatile int over, submitted_all, wrong;
    volatile long submitted, taken, made;
} busy;

static void *submits(void *unused)
{
    static struct iocb iocbs[64];
    static char target[64][512];
    for (int at = 0; !busy.over; at = (at + 1) % 64) {
        /* Its event was taken, or it is in flight still. */
        while (!busy.over && busy.submitted - busy.taken >= 32)
            sched_yield();
        iocbs[at] = iocb_of(PREAD, busy.fd, target[at], 512, 512 * (at % 8));
        int code = submit_one(busy.ctx, &iocbs[at]);
        busy.wrong += code != 1;
        busy.submitted += code == 1;
    }
    return unused;
}

static void *takes(void *unused)
{
    struct io_event events[8];
    struct timespec soon = {0, 2000000};
    while (!busy.submitted_all || busy.taken < busy.submitted) {
        int code = io_getevents(busy.ctx, 1, 8, events, &soon);
        for (int i = 0; i < code; i++)
            busy.wrong += events[i].res != 512;
        if (code > 0)
            busy.taken += code;
        busy.wrong += code < 0 && code != -EINTR;
    }
    return unused;
}

static void *makes(void *unused)
{
    char target[512];
    while (!busy.over) {
        context ctx = NULL;
        busy.wrong += io_setup(8, &ctx) != 0;
        busy.wrong += outcome(ctx, iocb_of(PREAD, busy.fd, target, 512, 0)) != 512;
        busy.wrong += io_destroy(ctx) != 0;
        busy.made++;
    }
    return unused;
}

/* Children that are made at any moment of what other threads do within the library: each can use it. */
static void amid(int in_use)
{
    enum { CHILDREN = 15 };
    void *(*bodies[])(void *) = {submits, takes, makes};
    pthread_t threads[3];
    int wrong = 0;
    memset(&busy, 0, sizeof busy);
    busy.ctx = made(64, in_use), busy.fd = filled("amid", O_RDONLY, 4096);
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, bodies[i], NULL);
    for (int i = 0; i < CHILDREN; i++) {
        long before = busy.taken;
        for (int turn = 0; turn < 1000 && busy.taken == before; turn++)
            usleep(100 + 37 * i);
        pid_t child = fork();
        if (child == 0) {
            /* Whatever it waits for does not come: that other thread is not here. */
            alarm(10);
            context ctx = NULL;
            int code = io_setup(8, &ctx);
            for (int k = 0; k < 3 && !code; k++)
                code = outcome(ctx, iocb_of(PREAD, busy.fd, buffer, 512, 0)) != 512;
            _exit(code || io_destroy(ctx));
        }
        int status = -1;
        wrong += waitpid(child, &status, 0) != child || status != 0;
        if (wrong)
            break;
    }
    busy.over = 1;
    pthread_join(threads[0], NULL);
    busy.submitted_all = 1;
    pthread_join(threads[1], NULL), pthread_join(threads[2], NULL);
    CHECK(wrong, 0);
    CHECK(busy.wrong, 0);
    CHECK(busy.taken == busy.submitted && busy.taken > 0 && busy.made > 0, 1);
    CHECK(io_destroy(busy.ctx), 0);
    close(busy.fd);
}

enum { COUNT = 600, THREADS = 60 };
static context all[COUNT];

/* One in so many; together, since each waits for the kernel's grace. */
static void *destroys(void *first)
{
    long wrong = 0;
    for (long i = (long)first; i < COUNT; i += THREADS)
        wrong += all[i] && io_destroy(all[i]) != 0;
    return (void *)wrong;
}

/* More contexts than the library keeps an eye on. */
static void many(int in_use)
{
    pthread_t threads[THREADS];
    int count = 0, code = 0, wrong = 0, fd = filled("many", O_RDONLY, 4096);
    memset(all, 0, sizeof all);
    while (count < COUNT && (code = io_setup(1, &all[count])) == 0)
        count++;
    context more = NULL;
    /* Unless the system has no more (fs.aio-max-nr). */
    CHECK(code == 0 || (code == -EAGAIN && syscall(SYS_io_setup, 1, &more) == -1), 1);
    if (count < COUNT)
        fprintf(stderr, "only %d contexts: %s\n", count, strerror(-code));
    for (int i = 0; i < 1 + 2 * in_use; i++) {
        CHECK(outcome(all[0], iocb_of(PREAD, fd, buffer, 512, 0)), 512);
        CHECK(outcome(all[count - 1], iocb_of(PREAD, fd, buffer, 512, 0)), 512);
    }
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, destroys, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        void *others;
        pthread_join(threads[i], &others);
        wrong += (long)others;
    }
    CHECK(wrong, 0);
    CHECK(io_destroy(all[count - 1]), -EINVAL);
    close(fd);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"children", children}, {"killed", killed}, {"amid", amid}, {"many", many}, {NULL, NULL},
    };
    return run_cases(cases, count, arguments);
}
