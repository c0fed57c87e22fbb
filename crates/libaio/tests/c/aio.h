/* What the cases share: libaio's interface, declared here so that no header need be installed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct iocb {
    uint64_t data;
    uint32_t key, rw_flags;
    uint16_t opcode;
    int16_t reqprio;
    int32_t fd;
    uint64_t buf, nbytes;
    int64_t offset;
    uint64_t reserved2;
    uint32_t flags, resfd;
};
struct io_event {
    uint64_t data, obj;
    int64_t res, res2;
};
struct aio_ring {
    uint32_t id, nr, head, tail, magic, compat, incompat, header_length;
    struct io_event events[];
};
typedef struct aio_ring *context;

int io_setup(int, context *);
int io_destroy(context);
int io_submit(context, long, struct iocb **);
int io_cancel(context, struct iocb *, struct io_event *);
int io_getevents(context, long, long, struct io_event *, struct timespec *);
int io_pgetevents(context, long, long, struct io_event *, struct timespec *, sigset_t *);
int io_queue_init(int, context *);
int io_queue_release(context);
int io_queue_run(context);
int io_queue_wait(context, struct timespec *);

enum { PREAD, PWRITE, FSYNC, FDSYNC, POLL = 5, NOOP, PREADV, PWRITEV };
enum { RESFD = 1, IOPRIO = 2 };

static int failed;

/* Prints the value, so that two libraries' outputs can be compared, and checks it. */
static void check_(int line, const char *what, long got, long wanted)
{
    printf("%4d %s = %ld\n", line, what, got);
    if (got != wanted) {
        fprintf(stderr, "line %d: %s is %ld, wanted %ld\n", line, what, got, wanted);
        failed = 1;
    }
}
#define CHECK(expression, wanted) check_(__LINE__, #expression, (long)(expression), (long)(wanted))
/* For what depends on the file system: only the comparison counts. */
#define SHOW(expression) printf("%4d %s = %ld\n", __LINE__, #expression, (long)(expression))

static struct iocb iocb_of(int opcode, int fd, void *buf, size_t nbytes, off_t offset)
{
    struct iocb iocb = {
        .opcode = opcode, .fd = fd, .buf = (uintptr_t)buf, .nbytes = nbytes, .offset = offset};
    return iocb;
}

static int submit_one(context ctx, struct iocb *iocb)
{
    return io_submit(ctx, 1, &iocb);
}

/* Submits one and waits for it: its result, or the error of submitting less 100000. */
static long outcome(context ctx, struct iocb iocb)
{
    struct io_event event = {0};
    int code = submit_one(ctx, &iocb);
    if (code != 1)
        return code - 100000;
    code = io_getevents(ctx, 1, 1, &event, NULL);
    if (code != 1)
        return code - 200000;
    if (event.obj != (uintptr_t)&iocb || event.res2 != 0)
        return -300000;
    return event.res;
}

static const char *directory;

static int file_of(const char *name, int flags, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, flags | O_CREAT, 0600);
    if (fd < 0 || (size && ftruncate(fd, size))) {
        perror(path);
        exit(2);
    }
    return fd;
}

static int filled(const char *name, int flags, size_t size)
{
    int fd = file_of(name, O_RDWR, 0);
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i / 512);
    if (pwrite(fd, bytes, size, 0) != (ssize_t)size || fsync(fd)) {
        perror("write");
        exit(2);
    }
    free(bytes);
    close(fd);
    return file_of(name, flags, 0);
}

/* Lets a library that watches its program first see that it waits in io_getevents. */
static void warm(context ctx)
{
    static char buffer[512];
    int fd = filled("warm", O_RDONLY, 4096);
    for (int i = 0; i < 3; i++)
        CHECK(outcome(ctx, iocb_of(PREAD, fd, buffer, 512, 0)), 512);
    close(fd);
}

static context made(int nr, int in_use)
{
    context ctx = NULL;
    CHECK(io_setup(nr, &ctx), 0);
    if (in_use)
        warm(ctx);
    return ctx;
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Another thread, once it is within a call that waits. */
struct other {
    pthread_t thread;
    volatile int id;
    context ctx;
    struct timespec *timeout;
    struct iocb *iocb;
};

static void until_within(struct other *other)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", other->id);
    for (;;) {
        FILE *file = fopen(path, "r");
        int number = file && fgets(line, sizeof line, file) && line[0] != 'r' ? atoi(line) : -1;
        if (file)
            fclose(file);
        /* io_pgetevents is 333, io_uring_enter 426; within io_submit ours may be in ppoll. */
        if (number == SYS_io_getevents || number == 333 || number == 426 || number == SYS_io_submit || number == SYS_ppoll)
            return;
        usleep(1000);
    }
}

static void start(struct other *other, void *(*body)(void *))
{
    other->id = 0;
    pthread_create(&other->thread, NULL, body, other);
    while (!other->id)
        usleep(1000);
    until_within(other);
}

static long ended(struct other *other)
{
    void *code;
    pthread_join(other->thread, &code);
    return (long)code;
}

static void *waits_for_two(void *argument)
{
    struct other *other = argument;
    struct io_event events[4];
    other->id = syscall(SYS_gettid);
    return (void *)(long)io_getevents(other->ctx, 2, 4, events, other->timeout);
}

struct test_case {
    const char *name;
    void (*run)(int);
};

/* Runs the case that the first argument names, or all of them: with a context that is new, and one in use. */
static int run_cases(const struct test_case *cases, int count, char **arguments)
{
    directory = arguments[count - 1];
    for (; cases->name; cases++)
        for (int in_use = 0; in_use < 2; in_use++)
            if (count < 3 || !strcmp(arguments[1], cases->name)) {
                printf("== %s %d\n", cases->name, in_use);
                cases->run(in_use);
            }
    return failed;
}
