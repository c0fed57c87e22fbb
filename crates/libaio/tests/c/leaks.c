/* Contexts made, used in every way and destroyed, again and again: nothing is left over. Under valgrind too, so
 * there is no bad pointer here, which it would follow itself.
 *
 *   leaks ROUNDS FOLDER     prints what is open, mapped and allocated after a tenth of the rounds, and after all
 */
#include "aio.h"
#include "../../include/nvlane_aio.h"
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>

enum { NR = 16, BYTES = 4096 };

static char *buffers;
static int cached, direct, ends[2];
/* None in the libaio that we are compared with. */
static int (*setup2)(uint32_t, uint32_t, struct iocb *, void *, void *, context *);

static struct iocb transfer(int i, int fd, int write)
{
    return iocb_of(write ? PWRITE : PREAD, fd, buffers + BYTES * i, BYTES, BYTES * i);
}

/* Closing a ring interrupts whoever has used it, sooner or later. */
static int take(context ctx, int min, int nr, struct io_event *events)
{
    int code;
    do
        code = io_getevents(ctx, min, nr, events, NULL);
    while (code == -EINTR);
    return code;
}

static long read_once(context ctx, struct iocb iocb)
{
    struct io_event event = {0};
    return submit_one(ctx, &iocb) == 1 && take(ctx, 1, 1, &event) == 1 ? event.res : -1;
}

/* Reads and writes of both kinds, a sync and polls, in one batch; half of it is never taken. */
static void usual(int round)
{
    context ctx = NULL;
    struct iocb iocbs[NR], *list[NR];
    struct io_event events[NR];
    CHECK(io_setup(NR, &ctx), 0);
    for (int i = 0; i < 4; i++)
        CHECK(read_once(ctx, transfer(i, i % 2 ? cached : direct, 0)), BYTES);
    for (int i = 0; i < NR; i++)
        iocbs[i] = transfer(i, i % 3 ? cached : direct, i % 5 == 0), list[i] = &iocbs[i];
    struct iovec vectors[2] = {{buffers, BYTES}, {buffers + BYTES, BYTES}};
    iocbs[3] = iocb_of(PREADV, direct, vectors, 2, 0);
    iocbs[4] = iocb_of(FDSYNC, cached, NULL, 0, 0);
    iocbs[5] = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
    iocbs[6] = iocb_of(PREAD, -1, buffers, BYTES, 0);
    CHECK(io_submit(ctx, NR, list), 6);
    CHECK(io_submit(ctx, 1, list + 6), -EBADF);
    CHECK(io_submit(ctx, NR - 7, list + 7), NR - 7);
    if (round % 2)
        CHECK(io_cancel(ctx, &iocbs[5], events), -EINPROGRESS);
    CHECK(take(ctx, 4, 8, events) >= 4, 1);
    CHECK(io_destroy(ctx), 0);
}

/* The same with known iocbs and pinned buffers, and a set-up that fails half-way. */
static void extended(int round)
{
    context ctx = NULL;
    struct iocb iocbs[NR];
    struct io_event events[NR];
    uintptr_t indices[NR];
    const unsigned pinned = IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS;
    unsigned flags = round % 2 ? pinned : IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SQWQ;
    for (int i = 0; i < NR; i++)
        iocbs[i] = transfer(i, i % 2 ? cached : direct, 0), indices[i] = i;
    CHECK(setup2(NR, flags, iocbs, NULL, NULL, &ctx), 0);
    CHECK(io_submit(ctx, NR, (struct iocb **)indices), NR);
    CHECK(take(ctx, 4, 8, events) >= 4, 1);
    CHECK(io_destroy(ctx), 0);
    ctx = NULL;
    iocbs[3].buf = 4096;
    CHECK(setup2(NR, pinned, iocbs, NULL, NULL, &ctx), -EFAULT);
}

/* What a thread submitted before it ended, from many contexts at once. */
static void *leave(void *argument)
{
    context *many = argument;
    for (int i = 0; i < NR; i++) {
        struct iocb iocb = transfer(i, direct, 0);
        CHECK(submit_one(many[i], &iocb), 1);
    }
    return NULL;
}

static void many(void)
{
    context all[NR] = {0};
    struct io_event event;
    for (int i = 0; i < NR; i++) {
        CHECK(io_setup(1 << (i / 2), &all[i]), 0);
        CHECK(read_once(all[i], transfer(i, direct, 0)), BYTES);
    }
    pthread_t thread;
    pthread_create(&thread, NULL, leave, all);
    pthread_join(thread, NULL);
    for (int i = 0; i < NR; i++) {
        if (i % 2)
            CHECK(take(all[i], 1, 1, &event), 1);
        CHECK(io_destroy(all[i]), 0);
    }
}

static long entries(const char *path)
{
    long count = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static long lines(const char *path)
{
    long count = 0;
    FILE *file = fopen(path, "r");
    for (int byte; file && (byte = getc(file)) != EOF;)
        count += byte == '\n';
    fclose(file);
    return count;
}

struct held {
    long descriptors, mappings, allocated;
};

static struct held held(void)
{
    return (struct held){entries("/proc/self/fd"), lines("/proc/self/maps"), mallinfo2().uordblks};
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    int rounds = atoi(arguments[1]);
    setup2 = dlsym(RTLD_DEFAULT, "io_setup2");
    buffers = aligned_alloc(4096, NR * BYTES);
    memset(buffers, 1, NR * BYTES);
    cached = filled("leaks", O_RDWR, NR * BYTES), direct = file_of("leaks", O_RDWR | O_DIRECT, 0);
    CHECK(pipe(ends), 0);
    struct held early = {0}, late;
    /* The lines would be millions. */
    fflush(stdout);
    FILE *said = fdopen(dup(1), "w");
    if (!freopen("/dev/null", "w", stdout))
        return 2;
    for (int round = 0; round < rounds && !failed; round++) {
        usual(round);
        if (setup2)
            extended(round);
        if (round % 100 == 0)
            many();
        if (round == rounds / 10)
            early = held();
    }
    late = held();
    fprintf(said, "descriptors %ld %ld\nmappings %ld %ld\nallocated %ld %ld\n", early.descriptors, late.descriptors,
        early.mappings, late.mappings, early.allocated, late.allocated);
    fclose(said);
    free(buffers);
    return failed;
}
