/* Every errno that fs/aio.c gives, on a fresh context and on one in use. */
#include "aio.h"

static char buffer[8192];
static void *const nowhere = (void *)16;

static void of_setup(void)
{
    context ctx = NULL;
    CHECK(io_setup(0, &ctx), -EINVAL);
    CHECK(io_setup(-1, &ctx), -EINVAL);
    CHECK(io_setup(0x10000000, &ctx), -EINVAL);
    CHECK(io_setup(1000000, &ctx), -EAGAIN);
    CHECK(io_setup(8, nowhere), -EFAULT);
    CHECK(ctx == NULL, 1);
    CHECK(io_setup(8, &ctx), 0);
    CHECK(ctx != NULL, 1);
    CHECK(io_setup(8, &ctx), -EINVAL);
    CHECK(io_destroy(ctx), 0);
    CHECK(io_destroy(ctx), -EINVAL);
    CHECK(io_destroy(NULL), -EINVAL);
    CHECK(io_queue_init(0, &ctx), -EINVAL);
    CHECK(io_queue_init(4, &ctx), 0);
    CHECK(io_queue_release(ctx), 0);
}

static void of_context(void)
{
    struct iocb iocb = iocb_of(PREAD, 0, buffer, 512, 0), *list = &iocb;
    struct io_event event;
    struct timespec soon = {0, 1};
    CHECK(io_submit(NULL, 1, &list), -EINVAL);
    CHECK(io_submit((context)buffer, 1, &list), -EINVAL);
    CHECK(io_getevents(NULL, 0, 1, &event, NULL), -EINVAL);
    CHECK(io_getevents((context)buffer, 1, 1, &event, &soon), -EINVAL);
    CHECK(io_cancel((context)buffer, &iocb, &event), -EINVAL);
    CHECK(io_pgetevents((context)buffer, 1, 1, &event, &soon, NULL), -EINVAL);
}

static void of_reading(context ctx)
{
    struct io_event events[4];
    struct timespec soon = {0, 1000}, none = {0, 0};
    CHECK(io_getevents(ctx, 2, 1, events, NULL), -EINVAL);
    CHECK(io_getevents(ctx, -1, 1, events, NULL), -EINVAL);
    CHECK(io_getevents(ctx, -2, -1, events, NULL), -EINVAL);
    CHECK(io_getevents(ctx, 0, 0, NULL, NULL), 0);
    CHECK(io_getevents(ctx, 0, 4, events, NULL), 0);
    CHECK(io_getevents(ctx, 1, 4, events, &none), 0);
    CHECK(io_getevents(ctx, 1, 4, events, &soon), 0);
    CHECK(io_queue_wait(ctx, &soon), 0);
    CHECK(io_queue_run(ctx), 0);
}

static void of_events_array(context ctx, int fd)
{
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct io_event event;
    CHECK(submit_one(ctx, &iocb), 1);
    usleep(20000);
    CHECK(io_getevents(ctx, 1, 1, nowhere, NULL), -EFAULT);
    (void)event;
}

static void of_iocbs(context ctx, int fd)
{
    struct iocb good = iocb_of(PREAD, fd, buffer, 512, 0), *list[2] = {nowhere, &good};
    struct iocb other;
    CHECK(io_submit(ctx, -1, list), -EINVAL);
    CHECK(io_submit(ctx, 0, list), 0);
    CHECK(io_submit(ctx, 0, nowhere), 0);
    CHECK(io_submit(ctx, 1, nowhere), -EFAULT);
    CHECK(io_submit(ctx, 1, list), -EFAULT);

    int descriptors[] = {-1, 9999};
    for (int i = 0; i < 2; i++)
        for (int opcode = 0; opcode < 9; opcode++) {
            other = iocb_of(opcode, descriptors[i], NULL, 0, 0);
            CHECK(outcome(ctx, other), -EBADF - 100000);
        }
    int opcodes[] = {4, NOOP, 9, 100, 65535};
    for (int i = 0; i < 5; i++)
        CHECK(outcome(ctx, iocb_of(opcodes[i], fd, buffer, 512, 0)), -EINVAL - 100000);
    other = good, other.reserved2 = 1;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    other = good, other.nbytes = 1ull << 63;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    other = good, other.offset = -1;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    other = good, other.offset = INT64_MAX;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    other = good, other.buf = 1ull << 63;
    CHECK(outcome(ctx, other), -EFAULT - 100000);
    other = good, other.rw_flags = 0x10000000;
    CHECK(outcome(ctx, other), -EOPNOTSUPP - 100000);
    other = good, other.flags = RESFD, other.resfd = fd;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    other = good, other.flags = RESFD, other.resfd = 9999;
    CHECK(outcome(ctx, other), -EBADF - 100000);
    other = good, other.flags = IOPRIO, other.reqprio = -1;
    CHECK(outcome(ctx, other), -EINVAL - 100000);
    /* The buffer, or a page of it, is not there: an event. */
    CHECK(outcome(ctx, iocb_of(PREAD, fd, nowhere, 512, 0)), -EFAULT);
    /* Unknown flags are ignored, priorities are not. */
    other = good, other.flags = 0x80000000;
    CHECK(outcome(ctx, other), 512);
    other = good, other.flags = IOPRIO, other.reqprio = (2 << 13) | 4;
    CHECK(outcome(ctx, other), 512);
    CHECK(outcome(ctx, other), 512);
    other.rw_flags = 1; /* RWF_HIPRI is forgotten */
    CHECK(outcome(ctx, other), 512);
    good.key = 77;
    CHECK(submit_one(ctx, &good), 1);
    CHECK(good.key, 0);
    struct io_event event;
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
}

static void of_vectors(context ctx, int fd)
{
    struct iovec vectors[1025];
    for (int i = 0; i < 1025; i++)
        vectors[i] = (struct iovec){buffer, 1};
    CHECK(outcome(ctx, iocb_of(PREADV, fd, vectors, 1024, 0)), 1024);
    CHECK(outcome(ctx, iocb_of(PREADV, fd, vectors, 1025, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(PREADV, fd, nowhere, 2, 0)), -EFAULT - 100000);
    CHECK(outcome(ctx, iocb_of(PREADV, fd, vectors, 0, 0)), 0);
    vectors[1].iov_base = nowhere;
    CHECK(outcome(ctx, iocb_of(PREADV, fd, vectors + 1, 1, 0)), -EFAULT);
    SHOW(outcome(ctx, iocb_of(PREADV, fd, vectors, 2, 0)));
    vectors[0].iov_len = -1;
    CHECK(outcome(ctx, iocb_of(PREADV, fd, vectors, 1, 0)), -EINVAL - 100000);
    vectors[0] = (struct iovec){(void *)(1ull << 63), 4096};
    CHECK(outcome(ctx, iocb_of(PWRITEV, fd, vectors, 1, 0)), -EFAULT - 100000);
}

static void of_sync_and_poll(context ctx, int fd)
{
    struct iocb iocb;
    CHECK(outcome(ctx, iocb_of(FSYNC, fd, NULL, 0, 0)), 0);
    CHECK(outcome(ctx, iocb_of(FDSYNC, fd, NULL, 0, 0)), 0);
    CHECK(outcome(ctx, iocb_of(FSYNC, fd, buffer, 0, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(FSYNC, fd, NULL, 1, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(FDSYNC, fd, NULL, 0, 1)), -EINVAL - 100000);
    iocb = iocb_of(FSYNC, fd, NULL, 0, 0), iocb.rw_flags = 2;
    CHECK(outcome(ctx, iocb), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(POLL, fd, (void *)POLLIN, 0, 0)), POLLIN);
    CHECK(outcome(ctx, iocb_of(POLL, fd, (void *)POLLPRI, 0, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(POLL, fd, (void *)0x10001, 0, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(POLL, fd, (void *)POLLIN, 1, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(POLL, fd, (void *)POLLIN, 0, 1)), -EINVAL - 100000);
}

static void of_files(context ctx)
{
    int ends[2], reading = filled("modes", O_RDONLY, 4096), writing = file_of("modes", O_WRONLY, 0);
    int dir = open(directory, O_RDONLY | O_DIRECTORY), path = open(directory, O_PATH);
    CHECK(pipe(ends), 0);
    CHECK(outcome(ctx, iocb_of(PWRITE, reading, buffer, 512, 0)), -EBADF - 100000);
    CHECK(outcome(ctx, iocb_of(PREAD, writing, buffer, 512, 0)), -EBADF - 100000);
    CHECK(outcome(ctx, iocb_of(PREADV, writing, buffer, 1, 0)), -EBADF - 100000);
    CHECK(outcome(ctx, iocb_of(PREAD, dir, buffer, 512, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(FSYNC, dir, NULL, 0, 0)), 0);
    CHECK(outcome(ctx, iocb_of(POLL, dir, (void *)POLLPRI, 0, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(PREAD, path, buffer, 512, 0)), -EBADF - 100000);
    CHECK(outcome(ctx, iocb_of(FSYNC, ends[0], NULL, 0, 0)), -EINVAL - 100000);
    CHECK(outcome(ctx, iocb_of(PREAD, ends[1], buffer, 1, 0)), -EBADF - 100000);
    CHECK(write(ends[1], "xyz", 3), 3);
    CHECK(outcome(ctx, iocb_of(PREAD, ends[0], buffer, 8, 0)), 3);
    CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 512, 4096)), 0);
    CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 8192, 4000)), 96);
    CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 0, 0)), 0);
    /* A descriptor that becomes another file between two requests. */
    for (int i = 0; i < 3; i++) {
        CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 512, 0)), 512);
        CHECK(dup2(writing, reading), reading);
        CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 512, 0)), -EBADF - 100000);
        CHECK(outcome(ctx, iocb_of(PWRITE, reading, buffer, 512, 0)), 512);
        close(reading);
        CHECK(outcome(ctx, iocb_of(PWRITE, reading, buffer, 512, 0)), -EBADF - 100000);
        CHECK(dup2(ends[0], reading), reading);
        CHECK(write(ends[1], "xyz", 3), 3);
        CHECK(outcome(ctx, iocb_of(PREAD, reading, buffer, 8, 0)), 3);
        close(reading);
        CHECK(file_of("modes", O_RDONLY, 0), reading);
    }
    close(ends[0]), close(ends[1]), close(reading), close(writing), close(dir), close(path);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    int fd = filled("errors", O_RDWR, 8192);
    of_setup();
    of_context();
    for (int in_use = 0; in_use < 2; in_use++) {
        void (*tables[])(context, int) = {of_iocbs, of_vectors, of_sync_and_poll, of_events_array};
        for (int i = 0; i < 4; i++) {
            context ctx = NULL;
            CHECK(io_setup(8, &ctx), 0);
            if (in_use)
                warm(ctx);
            tables[i](ctx, fd);
            CHECK(io_destroy(ctx), 0);
        }
        void (*plain[])(context) = {of_reading, of_files};
        for (int i = 0; i < 2; i++) {
            context ctx = NULL;
            CHECK(io_setup(8, &ctx), 0);
            if (in_use)
                warm(ctx);
            plain[i](ctx);
            CHECK(io_destroy(ctx), 0);
        }
    }
    return failed;
}
