/* Polled contexts on a block device: what one writes another reads, whatever is pinned and whoever submits. Prints how
 * many requests were to be polled for. Run in a guest (tests/guest/aio.sh): it needs a device, and overwrites it. */
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

int main(int count, char **arguments)
{
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
