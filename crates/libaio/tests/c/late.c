/* What happens between a request's submission and its event: files are closed, signals come, other threads submit. */
#include "aio.h"
#include <sys/resource.h>
#include <sys/socket.h>

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
                /* The number is new; the file was met by it; another file was, a moment ago. */
                for (int met = 0; met < 3; met++) {
                    context ctx = made(8, in_use);
                    int before = file_of("other", O_RDWR, 0);
                    if (met == 2)
                        CHECK(outcome(ctx, iocb_of(PREAD, before, buffer, 512, 0)), 512);
                    close(before);
                    int fd = filled("short", O_RDWR | (direct ? O_DIRECT : 0), SIZE);
                    CHECK(fd == before, 1);
                    /* What is cached is over when it is submitted. */
                    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
                    if (met == 1)
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
                    CHECK(io_destroy(ctx), 0);
                }
            }
}

static context left_in;
static struct iocb left_behind[16];
static void *leaves(void *count)
{
    struct iocb *list[16];
    for (long i = 0; i < (long)count; i++)
        list[i] = &left_behind[i];
    return (void *)(long)io_submit(left_in, (long)count, list);
}

static long left(long count)
{
    pthread_t thread;
    void *code;
    pthread_create(&thread, NULL, leaves, (void *)count);
    pthread_join(thread, &code);
    return (long)code;
}

/* What a thread left is not gone on with by a descriptor that is no longer open for it: the same file, for writing. */
static void write_only(int in_use)
{
    enum { SIZE = 1 << 19 };
    static char large[SIZE];
    struct io_event event;
    for (int round = 0; round < 20; round++) {
        left_in = made(8, in_use);
        int fd = filled("write_only", O_RDONLY, SIZE), other = file_of("write_only", O_WRONLY, 0);
        /* It has to wait for the disk. */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        left_behind[0] = iocb_of(PREAD, fd, large, SIZE, 0);
        CHECK(left(1), 1);
        CHECK(dup2(other, fd), fd);
        CHECK(io_getevents(left_in, 1, 1, &event, NULL), 1);
        CHECK(event.res == -EBADF, 0);
        CHECK(io_destroy(left_in), 0);
        close(fd), close(other);
    }
}

/* Past the page cache a thread leaves nothing undone, also where its requests wait for workers: writes into holes. */
static void direct_left(int in_use)
{
    enum { COUNT = 8, SIZE = 4096 };
    struct io_event events[2 * COUNT];
    struct iovec halves[] = {{buffer, SIZE / 2}, {buffer + SIZE, SIZE / 2}};
    for (int round = 0; round < 20; round++) {
        left_in = made(2 * COUNT, in_use);
        close(filled("source", O_RDONLY, 65536));
        int source = file_of("source", O_RDONLY | O_DIRECT, 0);
        int fd = file_of("holes", O_RDWR | O_TRUNC | O_DIRECT, 1 << 20);
        for (int i = 0; i < COUNT; i++) {
            left_behind[i] = iocb_of(PWRITE, fd, buffer, SIZE, 2 * SIZE * i);
            if (i % 2)
                left_behind[i] = iocb_of(PWRITEV, fd, halves, 2, 2 * SIZE * i);
            left_behind[COUNT + i] = iocb_of(PREAD, source, buffer + SIZE * (i + 1), SIZE, SIZE * i);
        }
        CHECK(left(2 * COUNT), 2 * COUNT);
        CHECK(io_getevents(left_in, 2 * COUNT, 2 * COUNT, events, NULL), 2 * COUNT);
        int wrong = 0;
        for (int i = 0; i < 2 * COUNT; i++)
            wrong += events[i].res != SIZE;
        CHECK(wrong, 0);
        CHECK(io_destroy(left_in), 0);
        close(fd), close(source);
    }
}

/* Whoever allocates, when that is counted. */
void *__libc_malloc(size_t);
static volatile int counted, allocations;
void *malloc(size_t size)
{
    allocations += counted;
    return __libc_malloc(size);
}

/* A handler may submit that has interrupted malloc, files that are new as well. */
static void allocating(int in_use)
{
    context ctx = made(32, in_use);
    struct iocb iocbs[16], *list[16];
    struct io_event events[16];
    int files[16], direct = O_DIRECT;
    for (int i = 0; i < 16; i++, direct ^= O_DIRECT) {
        files[i] = filled("allocating", O_RDWR | direct, 8192);
        iocbs[i] = iocb_of(i % 4 == 2 ? PWRITE : PREAD, files[i], buffer + 4096 * i, 4096, 0);
        if (i % 4 == 3)
            iocbs[i] = iocb_of(FDSYNC, files[i], NULL, 0, 0);
        list[i] = &iocbs[i];
    }
    allocations = 0, counted = 1;
    int one = io_submit(ctx, 1, list), others = io_submit(ctx, 15, list + 1);
    counted = 0;
    CHECK(one, 1);
    CHECK(others, 15);
    CHECK(allocations, 0);
    CHECK(io_getevents(ctx, 16, 16, events, NULL), 16);
    CHECK(io_destroy(ctx), 0);
    for (int i = 0; i < 16; i++)
        close(files[i]);
}

static volatile int handled;
static void on_signal(int number) { handled += number != 0; }

/* A write that is short stays short: a program that looks at the result decides what becomes of the rest. */
static void limited(int in_use)
{
    int fd = filled("limited", O_RDWR | O_DIRECT, 65536), files[] = {fd, file_of("limited", O_RDWR, 0)};
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
    /* One that fails has failed once, and is not tried again. */
    for (int i = 0; i < 2; i++) {
        CHECK(setrlimit(RLIMIT_FSIZE, &limit), 0);
        fflush(stdout);
        handled = 0, written = outcome(ctx, iocb_of(PWRITE, files[i], buffer, 4096, 16384));
        CHECK(setrlimit(RLIMIT_FSIZE, &before), 0);
        CHECK(written, -EFBIG);
        CHECK(handled, 1);
    }
    CHECK(io_destroy(ctx), 0);
    close(fd), close(files[1]);
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
    return (void *)(long)io_getevents(other->ctx, 1, 1, &event, other->timeout);
}

/* What becomes ready in one context does not end the wait in another, nor does it make that much longer. */
static void elsewhere(int in_use)
{
    struct timespec minutes = {300, 0}, moment = {5, 0}, *times[] = {NULL, &minutes, &moment};
    int fd = filled("elsewhere", O_RDONLY, 4096);
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct io_event event;
    CHECK(pipe(pipe_of_poll), 0);
    poll_iocb = iocb_of(POLL, pipe_of_poll[0], (void *)POLLIN, 0, 0);
    for (int i = 0; i < 3; i++) {
        int is_over = times[i] == &moment;
        polling = made(8, 1);
        struct other other = {.ctx = made(8, in_use), .timeout = times[i]};
        double begun = seconds();
        start(&other, polls_and_waits);
        CHECK(write(pipe_of_poll[1], "x", 1), 1);
        CHECK(io_getevents(polling, 1, 1, &event, NULL), 1);
        CHECK(event.res & POLLIN, POLLIN);
        if (!is_over)
            CHECK(submit_one(other.ctx, &iocb), 1);
        CHECK(ended(&other), !is_over);
        CHECK(seconds() - begun < (is_over ? 30 : 290), 1);
        CHECK(read(pipe_of_poll[0], buffer, 1), 1);
        CHECK(io_destroy(other.ctx), 0);
        CHECK(io_destroy(polling), 0);
    }
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

static void *submits_two(void *argument)
{
    struct other *other = argument;
    struct iocb *list[] = {other->iocb, other->iocb + 1};
    other->id = syscall(SYS_gettid);
    return (void *)(long)io_submit(other->ctx, 2, list);
}

/*
 * A thread whose io_submit waits for a pipe, while others have its context go the kernel's way for good: its events come when a
 * handler ends that wait, also to somebody who waits already.
 */
static void overtaken(int in_use)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    for (int waits = 0; waits < 2; waits++) {
        int ends[2], fd = filled("overtaken", O_RDONLY | O_DIRECT, 4096), signal = eventfd(0, 0);
        CHECK(pipe(ends), 0);
        context ctx = made(16, in_use);
        struct iocb own[2] = {iocb_of(PREAD, ends[0], buffer, 3, 0), iocb_of(PREAD, fd, buffer + 4096, 512, 0)};
        struct iocb other_way = iocb_of(PREAD, fd, buffer, 512, 0), next = other_way;
        other_way.flags = RESFD, other_way.resfd = signal;
        struct timespec seconds = {10, 0};
        struct other other = {.ctx = ctx, .iocb = own}, waiter = {.ctx = ctx, .timeout = &seconds};
        start(&other, submits_two);
        CHECK(outcome(ctx, other_way), 512);
        for (int i = 0; i < 3; i++)
            CHECK(outcome(ctx, next), 512);
        if (waits) {
            start(&waiter, waits_for_two);
            until_within(&waiter);
        }
        handled = 0;
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        CHECK(ended(&other), 2);
        CHECK(handled, 1);
        if (waits) {
            CHECK(ended(&waiter), 2);
        } else {
            struct io_event events[4];
            CHECK(io_getevents(ctx, 2, 4, events, &seconds), 2);
            int first = events[0].obj == (uintptr_t)own ? 0 : 1;
            CHECK(events[first].res, -EINTR);
            CHECK(events[!first].res, 512);
        }
        CHECK(outcome(ctx, next), 512);
        CHECK(io_destroy(ctx), 0);
        close(ends[0]), close(ends[1]), close(fd), close(signal);
    }
}

static void *destroys(void *ctx)
{
    return (void *)(long)io_destroy(ctx);
}

/* The same while its context is destroyed: what is left of its list goes nowhere where the next context would see it. */
static void orphaned(int in_use)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    int ends[2], fd = filled("orphaned", O_RDONLY | O_DIRECT, sizeof buffer);
    CHECK(pipe(ends), 0);
    for (int round = 0; round < 3; round++) {
        context ctx = made(16, in_use);
        struct iocb next = iocb_of(PREAD, fd, buffer, 512, 0);
        struct iocb own[2] = {iocb_of(PREAD, ends[0], buffer, 3, 0), iocb_of(PREAD, fd, buffer, sizeof buffer, 0)};
        CHECK(outcome(ctx, next), 512);
        struct other other = {.ctx = ctx, .iocb = own};
        start(&other, submits_two);
        pthread_t thread;
        pthread_create(&thread, NULL, destroys, ctx);
        usleep(100000);
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        /* Two where destroying waits for it, none where it does not. */
        long code = ended(&other);
        CHECK(code == 2 || code == -EINVAL, 1);
        void *destroyed;
        pthread_join(thread, &destroyed);
        CHECK(destroyed == NULL, 1);
        usleep(10000);
        struct io_event events[4];
        struct timespec soon = {0, 1000000};
        ctx = made(16, in_use);
        CHECK(io_getevents(ctx, 1, 4, events, &soon), 0);
        CHECK(outcome(ctx, next), 512);
        CHECK(io_destroy(ctx), 0);
    }
    close(ends[0]), close(ends[1]), close(fd);
}

static int distracting[2];
static void *polls_and_reads(void *argument)
{
    poll_iocb = iocb_of(POLL, distracting[0], (void *)POLLIN, 0, 0);
    return submit_one(polling, &poll_iocb) == 1 ? submits(argument) : NULL;
}

/* What becomes ready for a thread does not end its wait for a pipe or a socket; a handler does. */
static void distracted(int in_use)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    CHECK(pipe(distracting), 0);
    for (int sockets = 0; sockets < 2; sockets++) {
        int ends[2];
        struct io_event event;
        CHECK(sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
        polling = made(8, in_use);
        struct iocb reading = iocb_of(PREAD, ends[0], buffer, 100, 0);
        struct other other = {.ctx = polling, .iocb = &reading};
        start(&other, polls_and_reads);
        CHECK(write(distracting[1], "x", 1), 1);
        /* It comes when the thread has turned to it. */
        CHECK(io_getevents(polling, 1, 1, &event, NULL), 1);
        CHECK(event.obj == (uintptr_t)&poll_iocb, 1);
        CHECK(write(ends[1], "abc", 3), 3);
        CHECK(ended(&other), 1);
        CHECK(io_getevents(polling, 1, 1, &event, NULL), 1);
        CHECK(event.res, 3);
        CHECK(read(distracting[0], buffer, 1), 1);
        handled = 0;
        start(&other, submits);
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        CHECK(ended(&other), 1);
        CHECK(handled, 1);
        CHECK(io_getevents(polling, 1, 1, &event, NULL), 1);
        CHECK(event.res, -EINTR);
        CHECK(event.obj == (uintptr_t)&reading, 1);
        CHECK(io_destroy(polling), 0);
        close(ends[0]), close(ends[1]);
    }
    close(distracting[0]), close(distracting[1]);
}

/* A poll is left when the program closes every descriptor that it does not know, and then the context. */
static void unknown(int in_use)
{
    context ctx = made(8, in_use);
    int signal = eventfd(0, 0);
    struct iocb poll = iocb_of(POLL, signal, (void *)POLLIN, 0, 0), cancelled = poll, *list[] = {&poll, &cancelled};
    struct io_event event;
    CHECK(io_submit(ctx, 2, list), 2);
    CHECK(io_cancel(ctx, &cancelled, &event), -EINPROGRESS);
    CHECK(close_range(3, ~0U, 0), 0);
    CHECK(io_destroy(ctx), 0);
    int fd = filled("unknown", O_RDONLY, 4096);
    ctx = made(8, in_use);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, 512, 0)), 512);
    CHECK(io_destroy(ctx), 0);
    close(fd);
}

/* No side's events wait for ever behind another's, of whatever kind they are, also where there is room for more. */
static void turns(int in_use)
{
    static struct io_event events[4];
    context ctx = made(8, in_use);
    int fd = filled("turns", O_RDONLY, 4096), direct = file_of("turns", O_RDONLY | O_DIRECT, 0), ends[2];
    struct iocb late = iocb_of(PREAD, fd, buffer + 4096, 512, 0);
    CHECK(pipe(ends), 0);
    CHECK(write(ends[1], "", 1), 1);
    for (int kind = 0; kind < 8; kind++) {
        struct iocb early = iocb_of(PREAD, direct, buffer, kind / 2 == 1 ? 8192 : 512, 0);
        if (kind / 2 == 2)
            early = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
        if (kind / 2 == 3)
            early = iocb_of(PREAD, ends[0], buffer, 1, 0);
        /* Its place for events is known. */
        CHECK(submit_one(ctx, &late), 1);
        CHECK(io_getevents(ctx, 1, 4, events, NULL), 1);
        memset(buffer, 99, 512);
        CHECK(submit_one(ctx, &early), 1);
        /* The file is zeroes; its event comes soon after them. */
        for (int i = 0; i < 10000 && kind / 2 < 2 && *(volatile char *)buffer == 99; i++)
            usleep(1000);
        usleep(100000);
        int came = 0, got = 0;
        for (int i = 0; i < 16; i++) {
            if (submit_one(ctx, &late) != 1)
                CHECK(i, -1);
            int count = io_getevents(ctx, 1, kind % 2 ? 4 : 1, events, NULL);
            for (int k = 0; k < count; k++, got++)
                if (events[k].obj == (uintptr_t)&early && !came)
                    came = i + 1;
        }
        CHECK(came >= 1 && came <= 3, 1);
        if (kind == 6)
            CHECK(write(ends[1], "", 1), 1);
        for (; got < 17; got++)
            CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    }
    CHECK(io_destroy(ctx), 0);
    close(fd), close(direct), close(ends[0]), close(ends[1]);
}

static context in_handler;
static struct iocb handler_iocb;
static volatile long submitted_there, taken_there;
static void on_signal_waits(int number)
{
    (void)number;
    struct io_event event = {0};
    submitted_there = submit_one(in_handler, &handler_iocb);
    taken_there = io_getevents(in_handler, 1, 1, &event, NULL);
    if (event.obj != (uintptr_t)&handler_iocb || event.res != 512)
        taken_there = -300000;
}

/* A handler that has interrupted a wait submits, and waits for that itself: in another context, and in the same. */
static void nested(int in_use)
{
    struct sigaction action = {.sa_handler = on_signal_waits};
    sigaction(SIGUSR1, &action, NULL);
    int fd = filled("nested", O_RDONLY | O_DIRECT, 4096), ends[2];
    CHECK(pipe(ends), 0);
    for (int same = 0; same < 2; same++) {
        context ctx = made(8, in_use), second = made(8, in_use);
        struct iocb poll = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
        in_handler = same ? ctx : second;
        handler_iocb = iocb_of(PREAD, fd, buffer, 512, 0);
        CHECK(outcome(in_handler, handler_iocb), 512);
        CHECK(submit_one(ctx, &poll), 1);
        struct other other = {.ctx = ctx};
        start(&other, waits_for_two);
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        CHECK(ended(&other), -EINTR);
        CHECK(submitted_there, 1);
        CHECK(taken_there, 1);
        CHECK(io_destroy(ctx), 0);
        CHECK(io_destroy(second), 0);
    }
    close(fd), close(ends[0]), close(ends[1]);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"reused", reused},           {"write_only", write_only},   {"direct_left", direct_left},
        {"limited", limited},         {"interrupted", interrupted}, {"elsewhere", elsewhere},
        {"pipes", pipes},             {"allocating", allocating},   {"unknown", unknown},
        {"distracted", distracted},   {"overtaken", overtaken},     {"turns", turns},
        {"orphaned", orphaned},       {"nested", nested},           {NULL, NULL},
    };
    /* Whoever waits for himself waits for ever. */
    alarm(60);
    return run_cases(cases, count, arguments);
}
