/* Contexts made, used in every way and destroyed, again and again: nothing is left over. Under valgrind too, so
 * there is no bad pointer here, which it would follow itself.
 *
 *   leaks [usual|sets] ROUNDS FOLDER
 *       prints what is open, mapped and allocated after a tenth of the rounds, and after all: of contexts of all kinds, of usual
 *       ones, or of one for each set of flags of io_setup2
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
static int (*ring_enter)(context, uint32_t, uint32_t, uint32_t);
static FILE *said;

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

/* All sets of flags that go together; bits 0 to 6 are those of the proposal. */
static int go_together(unsigned flags)
{
    int known = flags & IOCTX_FLAG_USERIOCB;
    int to_be_known = flags & (IOCTX_FLAG_FIXEDBUFS | IOCTX_FLAG_FIXEDFILES | IOCTX_FLAG_SCQRING);
    int thread = flags & IOCTX_FLAG_SQTHREAD;
    return (known || !to_be_known) && (thread || !(flags & IOCTX_FLAG_SQPOLL)) && !(thread && flags & IOCTX_FLAG_SQWQ);
}

/* A context of each set, with requests of which half are taken, and one whose set-up fails when its ring is there. */
static void sets_of_flags(void)
{
    static struct {
        struct aio_sq_ring ring;
        uint32_t array[NR];
    } sq;
    static struct {
        struct aio_cq_ring ring;
        struct io_event events[NR];
    } cq;
    for (unsigned set = 0; set < 1 << 8; set++) {
        unsigned flags = (set & 0x7f) | (set >> 7 ? IOCTX_FLAG_FIXEDFILES : 0);
        struct iocb iocbs[NR], *list[NR];
        struct io_event events[NR];
        context ctx = NULL;
        memset(&sq, 0, sizeof sq), memset(&cq, 0, sizeof cq);
        sq.ring.nr_events = cq.ring.nr_events = NR, sq.ring.sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
        for (int i = 0; i < NR; i++) {
            iocbs[i] = transfer(i, direct, 0), iocbs[i].flags = flags & IOCTX_FLAG_IOPOLL ? IOCB_FLAG_HIPRI : 0;
            list[i] = flags & IOCTX_FLAG_USERIOCB ? (struct iocb *)(uintptr_t)i : &iocbs[i];
            sq.array[i] = i;
        }
        int code = setup2(NR, flags, iocbs, &sq, &cq, &ctx);
        if (!go_together(flags)) {
            CHECK(code, -EINVAL);
            continue;
        }
        if (code) {
            fprintf(said, "not checked: flags %#x: %s\n", flags, strerror(-code));
            continue;
        }
        /* Without queues to be polled these end with an error, when they are submitted or later: that too is one way. */
        if (flags & IOCTX_FLAG_SCQRING) {
            __atomic_store_n(&sq.ring.tail, NR, __ATOMIC_RELEASE);
            ring_enter(ctx, NR, NR / 2, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS);
        } else if (io_submit(ctx, NR, list) == NR) {
            CHECK(take(ctx, NR / 2, NR / 2, events), NR / 2);
        }
        CHECK(io_destroy(ctx), 0);
        ctx = NULL, iocbs[3].fd = 1 << 20;
        if (flags & IOCTX_FLAG_FIXEDFILES)
            CHECK(setup2(NR, flags, iocbs, &sq, &cq, &ctx) < 0, 1);
    }
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

struct held {
    long descriptors, mappings, pages, allocated;
};

/* Mappings side by side may be one to the kernel, so their pages count as well; but for the heap's, of which `allocated` tells. */
static void count_mappings(struct held *held)
{
    char line[512];
    unsigned long from, to;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file)) {
        held->mappings++;
        if (!strstr(line, "[heap]") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            held->pages += (to - from) / 4096;
    }
    fclose(file);
}

/* The kernel's threads that submit, which end some time after their contexts. */
static long submitting(void)
{
    double until = seconds() + 30;
    long count;
    do {
        DIR *tasks = opendir("/proc/self/task");
        count = 0;
        for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
            char path[300], name[32] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
            FILE *file = fopen(path, "r");
            count += file && fgets(name, sizeof name, file) && !strncmp(name, "iou-sqp-", 8);
            if (file)
                fclose(file);
        }
        closedir(tasks);
    } while (count && seconds() < until && !usleep(10000));
    return count;
}

static struct held held(void)
{
    struct held held = {.descriptors = entries("/proc/self/fd"), .allocated = mallinfo2().uordblks};
    count_mappings(&held);
    return held;
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    int rounds = atoi(arguments[count - 2]);
    int sets = count > 3 && !strcmp(arguments[1], "sets"), alone = count > 3 && !strcmp(arguments[1], "usual");
    setup2 = alone ? NULL : dlsym(RTLD_DEFAULT, "io_setup2");
    ring_enter = dlsym(RTLD_DEFAULT, "io_ring_enter");
    buffers = aligned_alloc(4096, NR * BYTES);
    memset(buffers, 1, NR * BYTES);
    cached = filled("leaks", O_RDWR, NR * BYTES), direct = file_of("leaks", O_RDWR | O_DIRECT, 0);
    CHECK(pipe(ends), 0);
    struct held early = {0}, late;
    /* The lines would be millions. */
    fflush(stdout);
    said = fdopen(dup(1), "w");
    if (!freopen("/dev/null", "w", stdout))
        return 2;
    for (int round = 0; round < rounds && !failed; round++) {
        if (sets)
            sets_of_flags();
        else
            usual(round);
        if (setup2 && !sets)
            extended(round);
        if (round % 100 == 0 && !sets)
            many();
        if (round == rounds / 10)
            early = held();
    }
    late = held();
    fprintf(said, "descriptors %ld %ld\nmappings %ld %ld\n", early.descriptors, late.descriptors, early.mappings, late.mappings);
    fprintf(said, "pages %ld %ld\nallocated %ld %ld\n", early.pages, late.pages, early.allocated, late.allocated);
    fflush(said);
    CHECK(submitting(), 0);
    fclose(said);
    free(buffers);
    return failed;
}
