/* On a block device, which is overwritten; run in a guest (tests/guest/aio.sh).
 *
 * device DEVICE              polled contexts: what one writes another reads, whatever is pinned and whoever submits; prints
 *                            how many requests were to be polled for
 * device kernel|ours|iopoll|sqthread DEVICE
 *                            reads, writes and syncs until the device is gone, by the kernel's system calls, by the library,
 *                            and by its contexts that poll, submitted by a thread as well; prints "begun" when it is at work,
 *                            and in the end how each kind ends from then on
 * device durable kernel|ours|indices DEVICE
 *                            syncs and writes that are to be durable, and others, by the kernel's system calls, by the library, and
 *                            by its contexts that name iocbs by their index; prints how many flushes and writes it takes
 */
#include "aio.h"
#include "../../include/nvlane_aio.h"

/* With gaps between requests, so that none are merged. */
enum { NR = 16, BYTES = 8192, STEP = 2 * BYTES };
static struct iocb iocbs[NR];
static struct aio_sq_ring *sq;
static struct aio_cq_ring *cq;
static long polled;

static const struct {
    const char *name;
    unsigned flags;
} ways[] = {
    {"iopoll", 0},
    {"fixedbufs", IOCTX_FLAG_FIXEDBUFS},
    {"fixedfiles", IOCTX_FLAG_FIXEDFILES},
    {"sqthread", IOCTX_FLAG_SQTHREAD},
    {"sqthread fixedbufs", IOCTX_FLAG_SQTHREAD | IOCTX_FLAG_FIXEDBUFS},
    {"sqwq", IOCTX_FLAG_SQWQ},
    {"scqring", IOCTX_FLAG_SCQRING},
    {"scqring fixedfiles", IOCTX_FLAG_SCQRING | IOCTX_FLAG_FIXEDFILES},
    {"scqring fixedfiles fixedbufs", IOCTX_FLAG_SCQRING | IOCTX_FLAG_FIXEDFILES | IOCTX_FLAG_FIXEDBUFS},
    {"all", IOCTX_FLAG_SCQRING | IOCTX_FLAG_FIXEDFILES | IOCTX_FLAG_FIXEDBUFS | IOCTX_FLAG_SQTHREAD},
};
enum { WAYS = sizeof ways / sizeof *ways };

static void came(const struct io_event *event, unsigned *seen)
{
    if (event->res != BYTES)
        CHECK(event->res, BYTES);
    *seen |= 1u << event->obj;
}

static void by_index(context ctx, unsigned *seen)
{
    uintptr_t indices[NR];
    struct io_event events[NR];
    for (int i = 0; i < NR; i++)
        indices[i] = i;
    for (int sent = 0, got = 0; got < NR;) {
        int code = sent < NR ? io_submit(ctx, NR - sent, (struct iocb **)indices + sent) : 0;
        if (code < 0 && code != -EAGAIN) {
            CHECK(code, NR);
            return;
        }
        sent += code > 0 ? code : 0;
        code = io_getevents(ctx, 1, NR, events, NULL);
        if (code < 1) {
            CHECK(code, 1);
            return;
        }
        for (int i = 0; i < code; i++, got++)
            came(&events[i], seen);
    }
}

static void by_rings(context ctx, unsigned *seen)
{
    struct io_event *events = (struct io_event *)(cq + 1);
    for (int i = 0; i < NR; i++)
        sq->array[(sq->tail + i) % NR] = i;
    __atomic_store_n(&sq->tail, sq->tail + NR, __ATOMIC_RELEASE);
    CHECK(io_ring_enter(ctx, NR, NR, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS), NR);
    for (; cq->head != __atomic_load_n(&cq->tail, __ATOMIC_ACQUIRE); cq->head++)
        came(&events[cq->head % NR], seen);
}

/* All iocbs once, in a context of their own. */
static void carry_out(int opcode, int fd, char *buffers, off_t at, unsigned flags)
{
    context ctx = NULL;
    unsigned seen = 0;
    for (int i = 0; i < NR; i++) {
        iocbs[i] = iocb_of(opcode, fd, buffers + BYTES * i, BYTES, at + STEP * i);
        iocbs[i].flags = IOCB_FLAG_HIPRI;
    }
    memset(sq, 0, sizeof *sq), memset(cq, 0, sizeof *cq);
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    int code = io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_IOPOLL | flags, iocbs, sq, cq, &ctx);
    CHECK(code, 0);
    if (code)
        return;
    (flags & IOCTX_FLAG_SCQRING ? by_rings : by_index)(ctx, &seen);
    CHECK(seen, (1u << NR) - 1);
    CHECK(io_destroy(ctx), 0);
    polled += NR;
}

/* --- Until the device is gone --- */

enum { KERNEL, OURS, IOPOLL, SQTHREAD, INDICES };
static const char *const names[] = {"kernel", "ours", "iopoll", "sqthread", "indices"};
enum { READS, WRITES, SYNCS };
static const char *const kinds[] = {"read", "write", "fdsync"};

static int of_kernel(long code) { return code < 0 ? -errno : (int)code; }

static int set_up(int way, context *ctx)
{
    unsigned flags = IOCTX_FLAG_USERIOCB | (way == INDICES ? 0 : IOCTX_FLAG_IOPOLL) | (way == SQTHREAD ? IOCTX_FLAG_SQTHREAD : 0);
    if (way == KERNEL)
        return of_kernel(syscall(SYS_io_setup, NR, ctx));
    return way == OURS ? io_setup(NR, ctx) : io_setup2(NR, flags, iocbs, NULL, NULL, ctx);
}

static int put(int way, context ctx, int index)
{
    struct iocb *iocb = way == KERNEL || way == OURS ? &iocbs[index] : (struct iocb *)(uintptr_t)index;
    return way == KERNEL ? of_kernel(syscall(SYS_io_submit, ctx, 1, &iocb)) : io_submit(ctx, 1, &iocb);
}

static int get(int way, context ctx, struct io_event *events)
{
    struct timespec second = {1, 0};
    if (way == KERNEL)
        return of_kernel(syscall(SYS_io_getevents, ctx, 1, NR, events, &second));
    return io_getevents(ctx, 1, NR, events, &second);
}

static int tear_down(int way, context ctx)
{
    return way == KERNEL ? of_kernel(syscall(SYS_io_destroy, ctx)) : io_destroy(ctx);
}

/* How many ended well, and the first that did not: what with, and when. */
static struct {
    long well, badly, last;
    double since;
} ends;

static int kind_of(int index)
{
    int opcode = iocbs[index].opcode;
    return opcode == PREAD ? READS : opcode == PWRITE ? WRITES : SYNCS;
}

static void ended_with(int index, long res)
{
    ends.last = res;
    if (res == (kind_of(index) == SYNCS ? 0 : BYTES))
        ends.well++;
    else if (!ends.badly++)
        ends.since = seconds();
}

/* One more of that iocb, once nothing else is in flight: its result, or what submitting it gives. */
static long alone(int way, context ctx, int index)
{
    struct io_event event[NR];
    int code = put(way, ctx, index);
    if (code != 1)
        return code;
    do
        code = get(way, ctx, event);
    while (code == 0 || code == -EINTR);
    return code == 1 ? event[0].res : -100000 + code;
}

static int until_gone(int way, const char *path)
{
    int fd = open(path, O_RDWR | O_DIRECT);
    char *buffers = aligned_alloc(4096, NR * BYTES);
    int busy[NR] = {0}, in_flight = 0, told = 0, polls = way == IOPOLL || way == SQTHREAD;
    context ctx = NULL;
    if (fd < 0) {
        perror(path);
        return 2;
    }
    memset(buffers, 0x5a, NR * BYTES);
    for (int i = 0; i < NR; i++) {
        int kind = i % (polls ? SYNCS : SYNCS + 1);
        iocbs[i] = iocb_of(kind == READS ? PREAD : kind == WRITES ? PWRITE : FDSYNC, fd, buffers + BYTES * i, BYTES, STEP * i);
        if (kind == SYNCS)
            iocbs[i].buf = iocbs[i].nbytes = iocbs[i].offset = 0;
        iocbs[i].flags = polls ? IOCB_FLAG_HIPRI : 0;
    }
    CHECK(set_up(way, &ctx), 0);
    /* At work until there are errors for a while: those of the removal itself differ from one time to the next. */
    while (in_flight || !ends.badly || seconds() < ends.since + 1) {
        int stop = ends.badly && seconds() > ends.since + 1;
        for (int i = 0; i < NR && !stop; i++) {
            int code = busy[i] ? 0 : put(way, ctx, i);
            if (code == 1)
                busy[i] = 1, in_flight++;
            else if (code == -EAGAIN && in_flight)
                break;
            else if (code < 0)
                ended_with(i, code);
        }
        struct io_event events[NR];
        int code = in_flight ? get(way, ctx, events) : 0;
        if (code < 0 && code != -EINTR) {
            CHECK(code, 0);
            return 1;
        }
        for (int i = 0; i < code; i++) {
            int index = polls ? (int)events[i].obj : (int)((struct iocb *)(uintptr_t)events[i].obj - iocbs);
            busy[index] = 0, in_flight--;
            ended_with(index, events[i].res);
        }
        if (ends.well > 300 && !told++) {
            puts("begun");
            fflush(stdout);
        }
    }
    for (int kind = READS; kind <= (polls ? WRITES : SYNCS); kind++)
        printf("gone: %s %ld\n", kinds[kind], alone(way, ctx, kind));
    /* With requests in flight, if there is anything that stays there. */
    for (int i = 0; i < NR; i++)
        put(way, ctx, i);
    CHECK(tear_down(way, ctx), 0);
    return failed;
}

/* --- What is to be durable --- */

enum { RWF_DSYNC_ = 2, RWF_SYNC_ = 4 };

static struct iocb write_of(int fd, char *buffers, int index, uint32_t rw_flags)
{
    struct iocb iocb = iocb_of(PWRITE, fd, buffers + BYTES * index, BYTES, STEP * index);
    iocb.rw_flags = rw_flags;
    return iocb;
}

/* All iocbs at once. */
static void together(int way, context ctx)
{
    struct iocb *list[NR];
    struct io_event events[NR];
    for (int i = 0; i < NR; i++)
        list[i] = way == INDICES ? (struct iocb *)(uintptr_t)i : &iocbs[i];
    CHECK(way == KERNEL ? of_kernel(syscall(SYS_io_submit, ctx, NR, list)) : io_submit(ctx, NR, list), NR);
    for (int got = 0; got < NR;) {
        int code = get(way, ctx, events);
        if (code < 0) {
            CHECK(code, NR);
            return;
        }
        for (int i = 0; i < code; i++, got++)
            CHECK(events[i].res, BYTES);
    }
}

static int durable(int way, const char *path)
{
    static const uint32_t kinds_of_writes[] = {RWF_DSYNC_, RWF_SYNC_, 0};
    int fd = open(path, O_RDWR | O_DIRECT), with = 0, without = 0, flushes = 0;
    char *buffers = aligned_alloc(4096, NR * BYTES);
    context ctx = NULL;
    if (fd < 0) {
        perror(path);
        return 2;
    }
    memset(buffers, 0x5a, NR * BYTES);
    CHECK(set_up(way, &ctx), 0);
    /* One after another: flushes that wait together are one. */
    for (int i = 0; i < NR; i++) {
        for (int opcode = FSYNC; opcode <= FDSYNC; opcode++, flushes++) {
            iocbs[i] = iocb_of(opcode, fd, NULL, 0, 0);
            CHECK(alone(way, ctx, i), 0);
        }
        for (int kind = 0; kind < 3; kind++) {
            iocbs[i] = write_of(fd, buffers, i, kinds_of_writes[kind]);
            CHECK(alone(way, ctx, i), BYTES);
            *(kinds_of_writes[kind] ? &with : &without) += 1;
        }
    }
    for (int i = 0; i < NR; i++) {
        iocbs[i] = write_of(fd, buffers, i, i % 4 ? RWF_DSYNC_ : 0);
        *(i % 4 ? &with : &without) += 1;
    }
    together(way, ctx);
    CHECK(tear_down(way, ctx), 0);
    printf("durable: %d flushes, %d writes with FUA, %d without\n", flushes, with, without);
    return failed;
}

int main(int count, char **arguments)
{
    for (int way = KERNEL; count == 4 && !strcmp(arguments[1], "durable") && way <= INDICES; way++)
        if (!strcmp(arguments[2], names[way]))
            return durable(way, arguments[3]);
    for (int way = KERNEL; count == 3 && way <= SQTHREAD; way++)
        if (!strcmp(arguments[1], names[way]))
            return until_gone(way, arguments[2]);
    int fd = open(arguments[count - 1], O_RDWR | O_DIRECT), other = open(arguments[count - 1], O_RDWR | O_DIRECT);
    if (fd < 0 || other < 0) {
        perror(arguments[count - 1]);
        return 2;
    }
    char *from = aligned_alloc(4096, NR * BYTES), *to = aligned_alloc(4096, NR * BYTES);
    sq = calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    cq = calloc(1, sizeof *cq + NR * sizeof(struct io_event));
    for (int way = 0; way < WAYS; way++) {
        printf("== %s\n", ways[way].name);
        off_t at = (off_t)way * NR * STEP;
        for (int i = 0; i < NR * BYTES; i++)
            from[i] = (char)(i / 512 * 7 + i + way * 13);
        carry_out(PWRITE, fd, from, at, ways[way].flags);
        memset(to, 0x5a, NR * BYTES);
        carry_out(PREAD, other, to, at, ways[way].flags);
        CHECK(memcmp(from, to, NR * BYTES), 0);
        /* Nor is it only what the contexts agree on. */
        memset(to, 0x5a, NR * BYTES);
        for (int i = 0; i < NR; i++)
            CHECK(pread(fd, to + BYTES * i, BYTES, at + STEP * i), BYTES);
        CHECK(memcmp(from, to, NR * BYTES), 0);
    }
    printf("polled for: %ld\n", polled);
    return failed;
}
