/* What contexts do beside errors: order, counts, waiting, signals, the ring. */
#include "aio.h"
#include <dlfcn.h>

static char buffer[1 << 20] __attribute__((aligned(4096)));

static void partial(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("partial", O_RDWR, 8192);
    struct iocb good[4], bad = iocb_of(PREAD, -1, buffer, 512, 0), *list[5];
    for (int i = 0; i < 4; i++)
        good[i] = iocb_of(PREAD, fd, buffer + 512 * i, 512, 512 * i), good[i].data = 70 + i;
    struct iocb *order[] = {&good[0], &good[1], &bad, &good[2], &good[3]};
    memcpy(list, order, sizeof list);
    CHECK(io_submit(ctx, 5, list), 2);
    CHECK(io_submit(ctx, 3, list + 2), -EBADF);
    struct io_event events[8];
    CHECK(io_getevents(ctx, 2, 8, events, NULL), 2);
    CHECK(events[0].data + events[1].data, 70 + 71);
    bad = good[0], bad.opcode = 99;
    CHECK(io_submit(ctx, 5, list), 2);
    list[2] = (struct iocb *)16;
    CHECK(io_submit(ctx, 5, list), 2);
    CHECK(io_getevents(ctx, 4, 8, events, NULL), 4);
    close(fd);
    bad = good[0];
    list[2] = &bad;
    CHECK(io_submit(ctx, 1, list), -EBADF);
    CHECK(io_destroy(ctx), 0);
}

/* More iocbs than there is room for. */
static void full(int in_use)
{
    context ctx = made(1, in_use);
    int ends[2], taken = 0;
    CHECK(pipe(ends), 0);
    static struct iocb iocbs[200];
    struct iocb *list[200];
    for (int i = 0; i < 200; i++)
        iocbs[i] = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0), list[i] = &iocbs[i];
    SHOW(taken = io_submit(ctx, 200, list));
    CHECK(io_submit(ctx, 1, list + taken), -EAGAIN);
    CHECK(write(ends[1], "x", 1), 1);
    struct io_event events[200];
    CHECK(io_getevents(ctx, taken, 200, events, NULL) == taken, 1);
    CHECK(submit_one(ctx, list[0]), 1);
    CHECK(io_destroy(ctx), 0);
    close(ends[0]), close(ends[1]);
}

static void eventfds(int in_use)
{
    context ctx = made(64, in_use);
    int fd = filled("eventfd", O_RDWR, 65536), signal = eventfd(0, EFD_NONBLOCK);
    int direct = file_of("eventfd", O_RDONLY | O_DIRECT, 0);
    struct iocb iocbs[32], *list[32];
    for (int i = 0; i < 32; i++) {
        iocbs[i] = iocb_of(i % 4 == 3 ? PWRITE : PREAD, i % 2 ? fd : direct, buffer + 4096 * i, 512, 0);
        iocbs[i].flags = RESFD, iocbs[i].resfd = signal, list[i] = &iocbs[i];
    }
    CHECK(io_submit(ctx, 32, list), 32);
    uint64_t sum = 0, count;
    struct pollfd wait = {.fd = signal, .events = POLLIN};
    while (sum < 32 && poll(&wait, 1, 5000) == 1 && read(signal, &count, 8) == 8)
        sum += count;
    CHECK(sum, 32);
    /* The events are in the ring by now, for whoever looks. */
    CHECK((ctx->tail - ctx->head + ctx->nr) % ctx->nr, 32);
    struct io_event events[32];
    struct timespec none = {0, 0};
    CHECK(io_getevents(ctx, 32, 32, events, &none), 32);
    CHECK(read(signal, &count, 8), -1);
    CHECK(io_destroy(ctx), 0);
    close(fd), close(direct), close(signal);
}

static void polls(int in_use)
{
    context ctx = made(8, in_use);
    int ends[2], fd = filled("polls", O_RDONLY, 4096);
    CHECK(pipe(ends), 0);
    struct iocb iocb = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0), other = iocb;
    iocb.data = 5;
    struct io_event event = {0};
    struct timespec soon = {0, 10000000};
    CHECK(submit_one(ctx, &iocb), 1);
    CHECK(io_getevents(ctx, 1, 1, &event, &soon), 0);
    CHECK(write(ends[1], "x", 1), 1);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.res & POLLIN, POLLIN);
    CHECK(event.data, 5);
    CHECK(io_cancel(ctx, &iocb, &event), -EINVAL);
    char byte;
    CHECK(read(ends[0], &byte, 1), 1);
    CHECK(submit_one(ctx, &iocb), 1);
    CHECK(io_cancel(ctx, &other, &event), -EINVAL);
    CHECK(io_cancel(ctx, (struct iocb *)16, &event), -EFAULT);
    CHECK(io_cancel(ctx, &iocb, &event), -EINPROGRESS);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.res, 0);
    CHECK(event.obj == (uintptr_t)&iocb, 1);
    CHECK(io_cancel(ctx, &iocb, &event), -EINVAL);
    iocb.key = 5;
    CHECK(io_cancel(ctx, &iocb, &event), -EINVAL);
    close(ends[1]);
    CHECK(outcome(ctx, iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0)), POLLHUP);
    other = iocb_of(PREAD, fd, buffer, 512, 0);
    CHECK(submit_one(ctx, &other), 1);
    CHECK(io_cancel(ctx, &other, &event), -EINVAL);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    /* One is left when the context goes. */
    CHECK(pipe(ends), 0);
    iocb = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
    CHECK(submit_one(ctx, &iocb), 1);
    CHECK(io_destroy(ctx), 0);
}

static volatile int handled, over;
static void on_signal(int number) { handled += number != 0; }

/* One signal may come before the call that it is to interrupt: it goes on until that has returned. */
static void *interrupter(void *thread)
{
    while (!over) {
        usleep(50000);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return NULL;
}

static void signals(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("signals", O_RDONLY, 4096);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), thread;
    struct io_event events[4];
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);

    over = 0;
    pthread_create(&thread, NULL, interrupter, &self);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), -EINTR);
    over = 1;
    pthread_join(thread, NULL);
    /* With one event there, it is that one. */
    handled = over = 0;
    CHECK(submit_one(ctx, &iocb), 1);
    pthread_create(&thread, NULL, interrupter, &self);
    CHECK(io_getevents(ctx, 2, 4, events, NULL), 1);
    over = 1;
    pthread_join(thread, NULL);
    CHECK(handled > 0, 1);

    /* io_pgetevents: blocked outside, let through within. */
    sigset_t blocked, open;
    sigemptyset(&blocked), sigemptyset(&open);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    struct timespec second = {1, 0}, soon = {0, 20000000}, none = {0, 0};
    handled = 0;
    raise(SIGUSR1);
    CHECK(io_getevents(ctx, 1, 1, events, &soon), 0);
    CHECK(handled, 0);
    CHECK(io_pgetevents(ctx, 1, 1, events, &second, &blocked), 0);
    CHECK(handled, 0);
    CHECK(io_pgetevents(ctx, 1, 1, events, &second, &open), -EINTR);
    CHECK(handled, 1);
    CHECK(io_pgetevents(ctx, 1, 1, events, &soon, NULL), 0);
    CHECK(io_pgetevents(ctx, 1, 1, events, &none, &open), 0);
    raise(SIGUSR1);
    CHECK(submit_one(ctx, &iocb), 1);
    usleep(20000);
    CHECK(io_pgetevents(ctx, 1, 1, events, &second, &open), 1);
    CHECK(handled, 2);
    pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
    CHECK(io_destroy(ctx), 0);
}

/* Signals that the set lets through and that are there before the call: who gets none for events is told. */
static void let_through(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("let_through", O_RDONLY, 4096);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t blocked, open;
    sigemptyset(&blocked), sigemptyset(&open);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    struct timespec none = {0, 0}, tiny = {0, 1}, second = {1, 0};
    static const struct {
        int min, nr, at_once, events;
    } calls[] = {
        {0, 1, 0, 0}, {0, 0, 0, 0}, {0, 1, 1, 0}, {1, 1, 1, 0}, {2, 1, 0, 0}, {2, 1, 1, 0},
        {0, 1, 0, 1}, {0, 1, 1, 1}, {0, 0, 0, 1}, {0, 0, 1, 1}, {2, 1, 1, 1},
    };
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
        struct io_event event;
        if (calls[i].events)
            CHECK(submit_one(ctx, &iocb), 1);
        /* In the page cache: it is there. */
        handled = 0;
        raise(SIGUSR1);
        SHOW(io_pgetevents(ctx, calls[i].min, calls[i].nr, &event, calls[i].at_once ? &none : NULL, &open));
        SHOW(handled);
        SHOW(io_pgetevents(ctx, 1, 1, &event, &tiny, &open));
        SHOW(handled);
        SHOW(io_pgetevents(ctx, 1, 1, &event, &tiny, &open));
    }
    /* The set alone is as good as none where nothing is pending; and what is wrong with a call is said first. */
    struct io_event event;
    CHECK(io_pgetevents(ctx, 0, 1, &event, NULL, &open), 0);
    CHECK(io_getevents(ctx, 2, 1, &event, &none), 0);
    CHECK(io_getevents(ctx, 2, 1, &event, &second), -EINVAL);
    pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
    CHECK(io_destroy(ctx), 0);
    close(fd);
}

static void timeouts(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("timeouts", O_RDONLY, 4096);
    struct io_event events[4];
    struct timespec tenth = {0, 100000000};
    double start = seconds();
    CHECK(io_getevents(ctx, 1, 4, events, &tenth), 0);
    CHECK(seconds() - start >= 0.1 && seconds() - start < 60, 1);
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    CHECK(submit_one(ctx, &iocb), 1);
    start = seconds();
    CHECK(io_getevents(ctx, 2, 4, events, &tenth), 1);
    CHECK(seconds() - start >= 0.1 && seconds() - start < 60, 1);
    CHECK(tenth.tv_nsec, 100000000);
    CHECK(io_destroy(ctx), 0);
}

/* A program that takes events from the ring by itself and never calls io_getevents. */
static void ring_reader(int in_use)
{
    (void)in_use;
    context ctx = made(8, 0);
    int fd = filled("ring", O_RDONLY, 16384), direct = file_of("ring", O_RDONLY | O_DIRECT, 0);
    CHECK(ctx->magic == 0xa10a10a1, 1);
    CHECK(ctx->compat, 1);
    CHECK(ctx->incompat, 0);
    CHECK(ctx->header_length, 32);
    CHECK(ctx->nr, 127);
    for (int i = 0; i < 500; i++) {
        struct iocb iocb = iocb_of(PREAD, i % 2 ? fd : direct, buffer, 4096, 4096 * (i % 4));
        if (submit_one(ctx, &iocb) != 1)
            CHECK(i, -1);
        double start = seconds();
        while (*(volatile uint32_t *)&ctx->head == *(volatile uint32_t *)&ctx->tail)
            if (seconds() - start > 10) {
                CHECK(i, -2);
                exit(1);
            }
        struct io_event *event = &ctx->events[ctx->head];
        if (event->res != 4096 || event->obj != (uintptr_t)&iocb)
            CHECK(event->res, -3);
        ctx->head = (ctx->head + 1) % ctx->nr;
    }
    /* And one that also waits. */
    for (int i = 0; i < 300; i++)
        if (outcome(ctx, iocb_of(PREAD, fd, buffer, 512, 0)) != 512)
            CHECK(i, -4);
    CHECK(io_destroy(ctx), 0);
}

static long called;
static void callback(context ctx, struct iocb *iocb, long res, long res2)
{
    (void)ctx;
    called += res + res2 + (iocb->nbytes == 512 ? 0 : 1000000);
}

static void queues(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("queues", O_RDONLY, 4096);
    struct iocb iocbs[3], *list[3];
    for (int i = 0; i < 3; i++)
        iocbs[i] = iocb_of(PREAD, fd, buffer, 512, 0), iocbs[i].data = (uintptr_t)callback, list[i] = &iocbs[i];
    called = 0;
    CHECK(io_submit(ctx, 3, list), 3);
    double start = seconds();
    while (called < 3 * 512 && seconds() - start < 10)
        if (io_queue_run(ctx) != 0)
            CHECK(0, 1);
    CHECK(called, 3 * 512);

    struct io_event events[3];
    int (*old_getevents)(context, long, struct io_event *, const struct timespec *) =
        dlvsym(RTLD_DEFAULT, "io_getevents", "LIBAIO_0.1");
    int (*old_wait)(context, const struct timespec *) = dlvsym(RTLD_DEFAULT, "io_queue_wait", "LIBAIO_0.1");
    int (*old_cancel)(context, struct iocb *) = dlvsym(RTLD_DEFAULT, "io_cancel", "LIBAIO_0.1");
    CHECK(old_getevents && old_wait && old_cancel, 1);
    CHECK((void *)old_getevents != dlvsym(RTLD_DEFAULT, "io_getevents", "LIBAIO_0.4"), 1);
    CHECK(io_submit(ctx, 1, list), 1);
    CHECK(old_getevents(ctx, 3, events, NULL), 1);
    struct timespec soon = {0, 1000000};
    CHECK(old_getevents(ctx, 3, events, &soon), 0);
    CHECK(old_wait(ctx, &soon), 0);
    CHECK(old_cancel(ctx, list[0]), -EINVAL);
    CHECK(io_destroy(ctx), 0);
}

static void transfers_on(int in_use, const char *name, int flags)
{
    context ctx = made(16, in_use);
    int fd = file_of(name, O_RDWR | O_TRUNC | flags, 0);
    char *out = aligned_alloc(4096, 65536), *in = aligned_alloc(4096, 65536);
    for (int i = 0; i < 65536; i++)
        out[i] = (char)(i * 7 + i / 4096);
    struct iovec write_parts[] = {{out + 16384, 4096}, {out + 20480, 12288}};
    struct iovec read_parts[] = {{in, 8192}, {in + 8192, 24576}};
    struct iocb iocb = iocb_of(PWRITE, fd, out, 16384, 0);
    CHECK(outcome(ctx, iocb), 16384);
    CHECK(outcome(ctx, iocb_of(PWRITEV, fd, write_parts, 2, 16384)), 16384);
    CHECK(outcome(ctx, iocb_of(FDSYNC, fd, NULL, 0, 0)), 0);
    CHECK(outcome(ctx, iocb_of(PREADV, fd, read_parts, 2, 0)), 32768);
    CHECK(memcmp(in, out, 32768), 0);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, in, 65536, 16384)), 16384);
    CHECK(memcmp(in, out + 16384, 16384), 0);
    iocb.rw_flags = 2; /* RWF_DSYNC */
    CHECK(outcome(ctx, iocb), 16384);
    iocb.rw_flags = 4;
    CHECK(outcome(ctx, iocb), 16384);
    iocb.rw_flags = 0x10, iocb.nbytes = 4096; /* RWF_APPEND */
    CHECK(outcome(ctx, iocb), 4096);
    CHECK(lseek(fd, 0, SEEK_END), 36864);
    iocb = iocb_of(PREAD, fd, in, 4096, 32768), iocb.rw_flags = 8;
    SHOW(outcome(ctx, iocb));
    SHOW(outcome(ctx, iocb_of(PREAD, fd, in + 1, 511, 1)));
    /* Many at once, more than the submission queue takes. */
    static struct iocb many[1000];
    struct iocb *list[1000];
    context wide = made(1000, in_use);
    for (int i = 0; i < 1000; i++)
        many[i] = iocb_of(i % 5 ? PREAD : PWRITE, fd, (i % 5 ? in : out) + 4096 * (i % 8), 4096, 4096 * (i % 8)), list[i] = &many[i];
    CHECK(io_submit(wide, 1000, list), 1000);
    static struct io_event events[1000];
    CHECK(io_getevents(wide, 1000, 1000, events, NULL), 1000);
    int wrong = 0;
    for (int i = 0; i < 1000; i++)
        wrong += events[i].res != 4096;
    CHECK(wrong, 0);
    CHECK(memcmp(in, out, 32768), 0);
    CHECK(io_destroy(wide), 0);
    CHECK(io_destroy(ctx), 0);
    close(fd), free(in), free(out);
}

static void transfers(int in_use)
{
    transfers_on(in_use, "cached", 0);
    transfers_on(in_use, "direct", O_DIRECT);
    const char *before = directory;
    directory = "/dev/shm";
    char name[64];
    snprintf(name, sizeof name, "nvlane-aio-%d", getpid());
    transfers_on(in_use, name, 0);
    char path[128];
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    unlink(path);
    directory = before;
}

/* Batches in which the usual and the unusual take turns, for longer than what is known of a file lasts. */
static void mixed(int in_use)
{
    enum { COUNT = 32, BLOCK = 4096 };
    context ctx = made(COUNT, in_use);
    int cached = filled("mixed", O_RDWR, 16 * BLOCK), direct = file_of("mixed", O_RDONLY | O_DIRECT, 0);
    static struct iocb iocbs[COUNT];
    static struct io_event events[COUNT];
    struct iocb *list[COUNT];
    struct iovec vector;
    int wrong = 0, twice = 0;
    for (int round = 0; round < 20; round++) {
        memset(buffer, -1, COUNT * BLOCK);
        for (int i = 0; i < COUNT; i++) {
            int fd = i % 3 || round % 2 ? direct : cached;
            iocbs[i] = iocb_of(PREAD, fd, buffer + BLOCK * i, BLOCK, BLOCK * ((i + round) % 16));
            iocbs[i].data = i, list[i] = &iocbs[i];
        }
        vector = (struct iovec){buffer + BLOCK * 7, BLOCK};
        iocbs[7] = iocb_of(PREADV, direct, &vector, 1, BLOCK * ((7 + round) % 16)), iocbs[7].data = 7;
        iocbs[15] = iocb_of(FDSYNC, cached, NULL, 0, 0), iocbs[15].data = 15;
        iocbs[16].nbytes = 2 * BLOCK, iocbs[16].offset = 15 * BLOCK; /* The file ends in the middle. */
        CHECK(io_submit(ctx, COUNT, list), COUNT);
        for (int got = 0; got < COUNT;) {
            int count = io_getevents(ctx, 1, COUNT - got, events + got, NULL);
            if (count <= 0) {
                CHECK(count, 1);
                return;
            }
            got += count;
        }
        unsigned seen = 0;
        for (int i = 0; i < COUNT; i++) {
            unsigned at = events[i].data;
            twice += at >= COUNT || seen >> at & 1;
            at %= COUNT, seen |= 1u << at;
            wrong += events[i].obj != (uintptr_t)&iocbs[at] || (long)events[i].res != (at == 15 ? 0 : BLOCK);
            char expected = at == 15 ? -1 : (char)((at == 16 ? 15 : (at + round) % 16) * 8);
            wrong += at != 17 && buffer[BLOCK * at] != expected;
        }
    }
    CHECK(wrong, 0);
    CHECK(twice, 0);
    /* One at a time, from the page cache. */
    for (int i = 0; i < 300; i++) {
        struct iocb one = iocb_of(PREAD, cached, buffer, 512, 512 * (i % 128));
        wrong += outcome(ctx, one) != 512 || buffer[0] != (char)(i % 128);
    }
    CHECK(wrong, 0);
    CHECK(outcome(ctx, iocb_of(PREAD, cached, buffer, BLOCK, 16 * BLOCK - 512)), 512);
    CHECK(outcome(ctx, iocb_of(PREAD, cached, buffer, BLOCK, 16 * BLOCK)), 0);
    CHECK(io_destroy(ctx), 0);
    close(cached), close(direct);
}

/* One at a time and with another in flight, of a file that is nowhere but in memory; then its number is a pipe's, and a directory's. */
static void of_memory(int in_use)
{
    enum { BLOCK = 512, BLOCKS = 128 };
    context ctx = made(8, in_use);
    const char *before = directory;
    char name[64], path[128];
    snprintf(name, sizeof name, "nvlane-aio-memory-%d", getpid());
    snprintf(path, sizeof path, "/dev/shm/%s", name);
    directory = "/dev/shm";
    int fd = filled(name, O_RDWR, BLOCKS * BLOCK), pipes[2], folder = open("/", O_RDONLY | O_DIRECTORY);
    unlink(path), directory = before;
    CHECK(pipe(pipes), 0);
    struct iocb poll = iocb_of(POLL, pipes[0], (void *)POLLIN, 0, 0);
    struct io_event event;
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        wrong += outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, BLOCK * (i % BLOCKS))) != BLOCK || buffer[0] != (char)(i % BLOCKS);
        /* From now on beside a poll, which stays in flight. */
        if (i == 150)
            CHECK(submit_one(ctx, &poll), 1);
    }
    CHECK(wrong, 0);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, 2 * BLOCK, (BLOCKS - 1) * BLOCK)), BLOCK);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, BLOCKS * BLOCK)), 0);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, 1L << 40)), 0);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, (char *)8, BLOCK, 0)));
    SHOW(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, -1)));
    CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, 0)), BLOCK);
    CHECK(dup2(folder, fd), fd);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, 0)));
    CHECK(dup2(pipes[0], fd), fd);
    CHECK(write(pipes[1], "pipe", 4), 4);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.obj == (uintptr_t)&poll, 1);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, 0)));
    CHECK(memcmp(buffer, "pipe", 4), 0);
    close(fd);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, buffer, BLOCK, 0)));
    CHECK(io_destroy(ctx), 0);
    close(pipes[0]), close(pipes[1]), close(folder);
}

static context in_handler;
static struct iocb handler_iocb;
static volatile int handler_code;
static void submitting_handler(int number)
{
    (void)number;
    struct iocb *list = &handler_iocb;
    handler_code = io_submit(in_handler, 1, &list);
}

/* A handler that submits, whatever the thread was doing. */
static void handlers(int in_use)
{
    int fd = filled("handlers", O_RDONLY, 4096);
    in_handler = made(64, in_use);
    handler_iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct sigaction action = {.sa_handler = submitting_handler};
    sigaction(SIGALRM, &action, NULL);
    struct io_event event;
    for (int i = 0; i < 5; i++) {
        handler_code = 0;
        ualarm(100000, 0);
        int code = io_getevents(in_handler, 1, 1, &event, NULL);
        CHECK(handler_code, 1);
        if (code == -EINTR)
            code = io_getevents(in_handler, 1, 1, &event, NULL);
        CHECK(code, 1);
        CHECK(event.res, 512);
    }
    CHECK(io_destroy(in_handler), 0);
}

/* Events that cannot be handed out stay where they are. */
static void unwritable(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("unwritable", O_RDONLY, 8192);
    int direct = file_of("unwritable", O_RDONLY | O_DIRECT, 0);
    struct io_event events[4] = {0};
    struct timespec patient = {10, 0};
    for (int i = 0; i < 2; i++) {
        struct iocb iocb = iocb_of(PREAD, i ? direct : fd, buffer, 4096, 4096);
        CHECK(submit_one(ctx, &iocb), 1);
        CHECK(io_getevents(ctx, 1, 4, (struct io_event *)16, &patient), -EFAULT);
        CHECK(io_getevents(ctx, 1, 4, events, &patient), 1);
        CHECK(events[0].res, 4096);
        CHECK(events[0].obj == (uintptr_t)&iocb, 1);
    }
    CHECK(io_destroy(ctx), 0);
    close(fd), close(direct);
}

/* A program that closes every descriptor that it does not know, as daemons do. */
static void closed(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("closed", O_RDONLY, 4096), direct = file_of("closed", O_RDONLY | O_DIRECT, 0);
    struct iocb first = iocb_of(PREAD, direct, buffer, 512, 0);
    struct iocb many[3], *list[3] = {&many[0], &many[1], &many[2]};
    struct io_event events[4] = {0};
    struct timespec patient = {10, 0};
    CHECK(submit_one(ctx, &first), 1);
    CHECK(close_range(3, ~0U, 0), 0);
    fd = file_of("closed", O_RDONLY, 0), direct = file_of("closed", O_RDONLY | O_DIRECT, 0);
    for (int i = 0; i < 3; i++)
        many[i] = iocb_of(PREAD, i == 1 ? direct : fd, buffer + 4096 * i, 512, 512 * i);
    CHECK(io_submit(ctx, 3, list), 3);
    CHECK(io_getevents(ctx, 4, 4, events, &patient), 4);
    for (int i = 0; i < 4; i++)
        CHECK(events[i].res, 512);
    CHECK(io_destroy(ctx), 0);
    /* Nothing of the program's is closed along with the context. */
    CHECK(pread(fd, buffer, 512, 0), 512);
    CHECK(pread(direct, buffer, 512, 0), 512);
    close(fd), close(direct);
}

/* As `outcome`, but not for ever. */
static long outcome_in_time(context ctx, int fd)
{
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 512);
    struct io_event event;
    struct timespec patient = {5, 0};
    int code = submit_one(ctx, &iocb);
    if (code == 1)
        code = io_getevents(ctx, 1, 1, &event, &patient);
    return code == 1 && event.obj == (uintptr_t)&iocb ? (long)event.res : code - 100000;
}

/* By a number at which no context has met another file. */
static int direct_file(const char *name)
{
    close(filled(name, O_RDONLY, 4096));
    int opened = file_of(name, O_RDONLY | O_DIRECT, 0), fd = fcntl(opened, F_DUPFD, 100);
    close(opened);
    return fd;
}

/* The same with other contexts made later, which get the numbers of what was closed. */
static void taken_over(int in_use)
{
    enum { COUNT = 3 };
    context early[COUNT], late[COUNT];
    for (int i = 0; i < COUNT; i++)
        early[i] = made(8, in_use);
    CHECK(close_range(3, ~0U, 0), 0);
    for (int i = 0; i < COUNT; i++)
        late[i] = made(8, in_use);
    int direct = direct_file("taken_over");
    /* The last of them does nothing before it is destroyed, and whatever is kept of it is not used again. */
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < COUNT; i++) {
            if (i < COUNT - 1)
                CHECK(outcome_in_time(early[i], direct), 512);
            CHECK(outcome_in_time(late[i], direct), 512);
        }
    CHECK(io_destroy(early[COUNT - 1]), 0);
    early[COUNT - 1] = made(8, in_use);
    for (int i = 0; i < COUNT; i++) {
        CHECK(outcome_in_time(early[i], direct), 512);
        CHECK(outcome_in_time(late[i], direct), 512);
        CHECK(io_destroy(early[i]), 0);
        CHECK(outcome_in_time(late[i], direct), 512);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(io_destroy(late[i]), 0);
    close(direct);
}

/* The same with a ring of io_uring of the program's own by those numbers. */
static void own_ring(int in_use)
{
    enum { FIRST = 256, COUNT = 8 };
    context ctx = made(8, in_use);
    char parameters[120] = {0};
    CHECK(close_range(3, ~0U, 0), 0);
    int ring = syscall(425, 4, parameters); /* io_uring_setup */
    CHECK(ring >= 0, 1);
    for (int i = 0; i < COUNT; i++)
        CHECK(dup2(ring, FIRST + i), FIRST + i);
    CHECK(io_destroy(ctx), 0);
    ctx = made(8, in_use);
    int direct = direct_file("own_ring");
    CHECK(outcome_in_time(ctx, direct), 512);
    CHECK(io_destroy(ctx), 0);
    for (int i = 0; i < COUNT; i++)
        CHECK(close(FIRST + i), 0);
    close(ring), close(direct);
}

/* Reads through the page cache that are short, or wrong, are over when they are submitted. */
static void ends(int in_use)
{
    context ctx = made(8, in_use);
    int fd = filled("ends", O_RDONLY, 4096 + 100), moved = fcntl(fd, F_DUPFD, 100);
    struct timespec none = {0, 0};
    for (int count = 1; count <= 2; count++)
        for (int turn = 0; turn < 3; turn++) {
            struct iocb iocbs[] = {
                iocb_of(PREAD, moved, buffer, 512, 4096), iocb_of(PREAD, moved, buffer, 512, 8192),
                iocb_of(PREAD, moved, (void *)16, 512, 0), iocb_of(PREAD, moved, buffer, 5000, 0),
            };
            for (int i = 0; i < 4; i += count) {
                struct iocb *list[] = {&iocbs[i], &iocbs[(i + 1) % 4]};
                struct io_event events[2] = {0};
                CHECK(io_submit(ctx, count, list), count);
                CHECK(io_getevents(ctx, 0, count, events, &none), count);
                for (int k = 0; k < count; k++) {
                    int at = (struct iocb *)(uintptr_t)events[k].obj - iocbs;
                    const long wanted[] = {100, 0, -EFAULT, 4196};
                    CHECK((long)events[k].res == wanted[at & 3], 1);
                }
            }
        }
    CHECK(io_destroy(ctx), 0);
    close(fd), close(moved);
}

/* A program that submits by a system call of its own, and takes events by the library. */
static void submits_itself(int in_use)
{
    static char data[512];
    context ctx = 0;
    struct io_event event;
    int fd = file_of("submits_itself", O_RDWR, 4096);
    CHECK(io_setup(16, &ctx), 0);
    for (int i = 0; i < 12; i++) {
        struct iocb reading = iocb_of(PREAD, fd, data, sizeof data, 0), *list[] = {&reading};
        long submitted = i % 4 == 3 ? io_submit(ctx, 1, list) : syscall(SYS_io_submit, ctx, 1L, list);
        CHECK(submitted, 1);
        CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
        CHECK(event.res, (long)sizeof data);
    }
    CHECK(io_destroy(ctx), 0);
    CHECK(close(fd), 0);
    (void)in_use;
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"partial", partial},       {"full", full},             {"eventfds", eventfds},
        {"polls", polls},           {"signals", signals},       {"timeouts", timeouts},
        {"ring", ring_reader},      {"queues", queues},         {"transfers", transfers},
        {"handlers", handlers},     {"unwritable", unwritable}, {"closed", closed},
        {"mixed", mixed},           {"let_through", let_through},
        {"taken_over", taken_over},   {"own_ring", own_ring},
        {"ends", ends},             {"of_memory", of_memory},
        {"submits_itself", submits_itself},
        {NULL, NULL},
    };
    return run_cases(cases, count, arguments);
}
