/* io_setup2 and io_ring_enter: what they do, and what they refuse. */
#include "aio.h"
#include "../../include/nvlane_aio.h"
#include <sys/resource.h>

#define NR 16
static struct iocb iocbs[NR];
static char *buffers;

static void prepare(int fd, unsigned flags)
{
    for (int i = 0; i < NR; i++) {
        iocbs[i] = iocb_of(PREAD, fd, buffers + 4096 * i, 4096, 4096 * i);
        iocbs[i].data = 1000 + i, iocbs[i].flags = flags;
    }
}

static void refusals(int fd)
{
    context ctx = NULL;
    prepare(fd, 0);
    CHECK(io_setup2(0, IOCTX_FLAG_USERIOCB, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, 1 << 20, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, NULL, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, IOCTX_FLAG_FIXEDBUFS, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SQPOLL, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, iocbs, NULL, NULL, (void *)16), -EFAULT);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, (void *)16, NULL, NULL, &ctx), -EFAULT);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS, (void *)16, NULL, NULL, &ctx), -EFAULT);
    iocbs[3].buf = 4096;
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS, iocbs, NULL, NULL, &ctx), -EFAULT);
    CHECK(ctx == NULL, 1);
    CHECK(io_setup2(NR, 0, NULL, NULL, NULL, &ctx), 0);
    prepare(fd, 0);
    CHECK(outcome(ctx, iocbs[1]), 4096);
    CHECK(io_destroy(ctx), 0);
}

static void by_index(int fd, unsigned more)
{
    context ctx = NULL;
    struct io_event events[NR];
    struct timespec none = {0, 0}, soon = {0, 10000000};
    uintptr_t indices[NR + 1];
    prepare(fd, 0);
    memset(buffers, 0, NR * 4096);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | more, iocbs, NULL, NULL, &ctx), 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | more, iocbs, NULL, NULL, &ctx), -EINVAL);
    CHECK(io_getevents(ctx, 1, NR, events, &none), 0);
    CHECK(io_getevents(ctx, 1, NR, events, &soon), 0);
    CHECK(io_getevents(ctx, 2, 1, events, &none), -EINVAL);
    for (int i = 0; i <= NR; i++)
        indices[i] = i;
    CHECK(io_submit(ctx, NR, (struct iocb **)indices), NR);
    CHECK(io_getevents(ctx, NR, NR, events, NULL), NR);
    long objects = 0, data = 0, wrong = 0;
    for (int i = 0; i < NR; i++)
        objects += events[i].obj, data += events[i].data, wrong += events[i].res != 4096;
    CHECK(objects, NR * (NR - 1) / 2);
    CHECK(data, NR * 1000 + NR * (NR - 1) / 2);
    CHECK(wrong, 0);
    for (int i = 0; i < NR * 4096; i++)
        wrong += buffers[i] != (char)(i / 512);
    CHECK(wrong, 0);
    indices[0] = NR;
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EINVAL);
    indices[0] = 0, indices[1] = NR;
    CHECK(io_submit(ctx, 2, (struct iocb **)indices), 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(io_submit(ctx, 1, (void *)16), -EFAULT);
    CHECK(io_submit(ctx, -1, (struct iocb **)indices), -EINVAL);
    CHECK(io_cancel(ctx, &iocbs[0], events), -EINVAL);
    CHECK(io_ring_enter(ctx, 1, 0, IORING_FLAG_SUBMIT), -EINVAL);
    int fixed = more & IOCTX_FLAG_FIXEDBUFS;
    /* Within the buffer, and beyond its ends. */
    iocbs[0].buf += 512, iocbs[0].nbytes -= 512;
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].res, 3584);
    iocbs[0].nbytes += 512;
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), fixed ? -EFAULT : 1);
    if (!fixed)
        CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    struct iovec vector = {buffers, 512};
    iocbs[0] = iocb_of(PREADV, fd, &vector, 1, 0);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), fixed ? -EINVAL : 1);
    if (!fixed)
        CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    indices[1] = 1;
    /* The kernel looks at a priority when the request is carried out, and at none of what moves nothing. */
    for (int class = 2; class < 8; class += 5) {
        prepare(fd, IOPRIO);
        iocbs[1] = iocb_of(FSYNC, fd, NULL, 0, 0), iocbs[1].flags = IOPRIO;
        iocbs[0].reqprio = iocbs[1].reqprio = (int16_t)(class << 13 | 4);
        for (int i = 0; i < 2; i++) {
            CHECK(io_submit(ctx, 1, (struct iocb **)(indices + i)), 1);
            CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
            CHECK(events[0].res, i == 1 ? 0 : class == 2 ? 4096 : -EINVAL);
        }
    }
    prepare(fd, 0);
    iocbs[0].opcode = 77;
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EINVAL);
    prepare(fd, IOCB_FLAG_HIPRI);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EINVAL);
    prepare(fd, RESFD);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EINVAL);
    prepare(-1, 0);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EBADF);
    prepare(fd, 0);
    iocbs[0] = iocb_of(FDSYNC, fd, NULL, 0, 0);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].res, 0);
    /* What the file does not take says its event. */
    iocbs[0] = iocb_of(PREAD, fd, buffers + 1, 511, 1);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].res, fcntl(fd, F_GETFL) & O_DIRECT ? -EINVAL : 511);
    /* Destroyed with requests in flight. */
    CHECK(io_submit(ctx, NR - 1, (struct iocb **)indices + 2), NR - 2);
    CHECK(io_destroy(ctx), 0);
    CHECK(io_destroy(ctx), -EINVAL);
    CHECK(io_submit(ctx, 1, (struct iocb **)indices), -EINVAL);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), -EINVAL);
}

static void rings(int fd, unsigned more)
{
    struct aio_sq_ring *sq = calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    struct aio_cq_ring *cq = calloc(1, sizeof *cq + NR * sizeof(struct io_event));
    struct io_event *events = (struct io_event *)(cq + 1), event;
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    CHECK(sizeof *sq, 64);
    CHECK(sizeof *cq, 32);
    context ctx = NULL;
    prepare(fd, 0);
    const unsigned flags = IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING | more;
    CHECK(io_setup2(NR, flags, iocbs, (void *)8, cq, &ctx), -EFAULT);
    CHECK(io_setup2(NR, flags, iocbs, sq, (void *)8, &ctx), -EFAULT);
    /* The first page of a ring is there, and not those of its other places. */
    char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(two + 4096, 4096);
    ((struct aio_cq_ring *)two)->nr_events = (4096 - 32) / 32 + 1;
    CHECK(io_setup2(NR, flags, iocbs, sq, (void *)two, &ctx), -EFAULT);
    ((struct aio_sq_ring *)two)->nr_events = 1024;
    ((struct aio_sq_ring *)two)->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    CHECK(io_setup2(NR, flags, iocbs, (void *)two, cq, &ctx), -EFAULT);
    char *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ((struct aio_cq_ring *)fixed)->nr_events = NR;
    mprotect(fixed, 4096, PROT_READ);
    CHECK(io_setup2(NR, flags, iocbs, sq, (void *)fixed, &ctx), -EFAULT);
    munmap(fixed, 4096), munmap(two, 4096);
    sq->nr_events = 0;
    CHECK(io_setup2(NR, flags, iocbs, sq, cq, &ctx), -EINVAL);
    sq->nr_events = NR, cq->nr_events = 0;
    CHECK(io_setup2(NR, flags, iocbs, sq, cq, &ctx), -EINVAL);
    cq->nr_events = NR - 1;
    CHECK(io_setup2(NR, flags, iocbs, sq, cq, &ctx), -EINVAL);
    cq->nr_events = NR;
    CHECK(io_setup2(NR, flags, iocbs, (struct aio_sq_ring *)((char *)sq + 1), cq, &ctx), -EINVAL);
    CHECK(io_setup2(NR, flags, iocbs, sq, cq, &ctx), 0);
    CHECK(io_getevents(ctx, 0, 1, &event, NULL), -EINVAL);
    CHECK(io_ring_enter(ctx, 0, 0, 8), -EINVAL);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 5; i++)
            sq->array[(sq->tail + i) % NR] = (round + i) % NR;
        __atomic_store_n(&sq->tail, sq->tail + 5, __ATOMIC_RELEASE);
        int code = io_ring_enter(ctx, 5, 5, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS);
        if (code != 5 || cq->tail - cq->head != 5)
            CHECK(code, 5);
        for (; cq->head != cq->tail; cq->head++)
            if (events[cq->head % NR].res != 4096)
                CHECK(events[cq->head % NR].res, 4096);
    }
    CHECK(sq->head, 250);
    CHECK(cq->tail, 250);
    sq->array[sq->tail++ % NR] = NR;
    CHECK(io_ring_enter(ctx, 1, 0, IORING_FLAG_SUBMIT), -EINVAL);
    CHECK(sq->head, 250);
    CHECK(io_destroy(ctx), 0);
    free(sq), free(cq);
}

/* Counts pass 2^32, and the places go on in turn: nothing that waits is overwritten. */
static void counts(int fd)
{
    enum { COUNT = 12 };
    struct aio_sq_ring *sq = calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    struct aio_cq_ring *cq = calloc(1, sizeof *cq + NR * sizeof(struct io_event));
    struct io_event *events = (struct io_event *)(cq + 1);
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    context ctx = NULL;
    prepare(fd, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, sq, cq, &ctx), 0);
    sq->head = sq->tail = cq->head = cq->tail = UINT32_MAX - 4;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < NR; i++)
            sq->array[i] = NR;
        for (int i = 0; i < COUNT; i++)
            sq->array[(sq->tail + i) % NR] = i;
        __atomic_store_n(&sq->tail, sq->tail + COUNT, __ATOMIC_RELEASE);
        CHECK(io_ring_enter(ctx, COUNT, COUNT, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS), COUNT);
        CHECK(cq->tail - cq->head, COUNT);
        unsigned seen = 0;
        for (; cq->head != cq->tail; cq->head++) {
            struct io_event *event = &events[cq->head % NR];
            CHECK(event->res, 4096);
            seen |= 1u << (uintptr_t)event->obj;
            memset(event, 0xff, sizeof *event);
        }
        CHECK(seen, (1 << COUNT) - 1);
    }
    CHECK(io_destroy(ctx), 0);
    free(sq), free(cq);
}

static struct {
    context ctx;
    struct aio_sq_ring *sq;
    int errors;
} shared;

/* A thread waits for a pipe to be readable; another must be able to submit to the same context meanwhile. */
static int ends[2];

static void *waits(void *unused)
{
    shared.sq->array[shared.sq->tail % NR] = 0;
    __atomic_store_n(&shared.sq->tail, shared.sq->tail + 1, __ATOMIC_RELEASE);
    int code = io_ring_enter(shared.ctx, 1, 1, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS);
    CHECK(code, 1);
    return unused;
}

static void others_may_submit(int fd)
{
    struct aio_sq_ring *sq = calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    struct aio_cq_ring *cq = calloc(1, sizeof *cq + NR * sizeof(struct io_event));
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    context ctx = NULL;
    prepare(fd, 0);
    CHECK(pipe(ends), 0);
    iocbs[0] = iocb_of(POLL, ends[0], (void *)1, 0, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, sq, cq, &ctx), 0);
    shared.ctx = ctx, shared.sq = sq;
    pthread_t thread;
    pthread_create(&thread, NULL, waits, NULL);
    while (__atomic_load_n(&sq->head, __ATOMIC_ACQUIRE) != 1)
        usleep(1000);
    usleep(20000);
    sq->array[1] = 1;
    __atomic_store_n(&sq->tail, 2, __ATOMIC_RELEASE);
    CHECK(io_ring_enter(ctx, 1, 0, IORING_FLAG_SUBMIT), 1);
    CHECK(write(ends[1], "", 1), 1);
    pthread_join(thread, NULL);
    while (io_ring_enter(ctx, 0, 1, IORING_FLAG_GETEVENTS) > 0)
        ;
    CHECK(cq->tail, 2);
    CHECK(io_destroy(ctx), 0);
    close(ends[0]), close(ends[1]);
    free(sq), free(cq);
}

static volatile int handled;
static void on_signal(int number) { handled += number != 0; }

/* One signal ends a wait for two events, of which one is there, or none where events are polled for. */
static void interrupted(int fd, unsigned more)
{
    int polled = more & IOCTX_FLAG_IOPOLL ? 1 : 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    struct timespec minutes = {300, 0};
    for (int timed = 0; timed < 2; timed++) {
        struct other other = {.timeout = timed ? &minutes : NULL};
        prepare(fd, 0);
        CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | more, iocbs, NULL, NULL, &other.ctx), 0);
        start(&other, waits_for_two);
        /* In the page cache: its event is there when this returns. */
        if (!polled)
            CHECK(io_submit(other.ctx, 1, (struct iocb *[]){NULL}), 1);
        until_within(&other);
        handled = 0;
        alarm(30);
        CHECK(pthread_kill(other.thread, SIGUSR1), 0);
        CHECK(ended(&other), polled ? -EINTR : 1);
        alarm(0);
        CHECK(handled, 1);
        CHECK(io_destroy(other.ctx), 0);
    }
}

/* Threads that submit from one ring: each index once. */
static void *submitter(void *unused)
{
    (void)unused;
    while (__atomic_load_n(&shared.sq->head, __ATOMIC_ACQUIRE) != __atomic_load_n(&shared.sq->tail, __ATOMIC_RELAXED)) {
        int code = io_ring_enter(shared.ctx, 1, 0, IORING_FLAG_SUBMIT);
        if (code != 0 && code != 1)
            __atomic_fetch_add(&shared.errors, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void threads(int fd)
{
    enum { ROUNDS = 300 };
    struct aio_sq_ring *sq = calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    struct aio_cq_ring *cq = calloc(1, sizeof *cq + NR * sizeof(struct io_event));
    struct io_event *events = (struct io_event *)(cq + 1);
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    context ctx = NULL;
    prepare(fd, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, sq, cq, &ctx), 0);
    shared.ctx = ctx, shared.sq = sq;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < NR; i++)
            sq->array[(sq->tail + i) % NR] = i;
        __atomic_store_n(&sq->tail, sq->tail + NR, __ATOMIC_RELEASE);
        pthread_t thread[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&thread[i], NULL, submitter, NULL);
        for (int i = 0; i < 3; i++)
            pthread_join(thread[i], NULL);
        CHECK(sq->head, sq->tail);
        CHECK(io_ring_enter(ctx, 0, NR, IORING_FLAG_GETEVENTS), NR);
        int seen[NR] = {0};
        for (; cq->head != cq->tail; cq->head++)
            seen[events[cq->head % NR].obj]++;
        for (int i = 0; i < NR; i++)
            if (seen[i] != 1)
                CHECK(seen[i], 1);
    }
    CHECK(shared.errors, 0);
    CHECK(io_destroy(ctx), 0);
    free(sq), free(cq);
}

static void pointers(int fd)
{
    context ctx = NULL;
    prepare(fd, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_SQTHREAD, NULL, NULL, NULL, &ctx), 0);
    for (int i = 0; i < 100; i++)
        if (outcome(ctx, iocbs[i % NR]) != 4096)
            CHECK(i, -1);
    CHECK(io_destroy(ctx), 0);
}

static void polled(int cached, unsigned more)
{
    context ctx = NULL;
    uintptr_t index = 0;
    prepare(cached, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_IOPOLL | more, iocbs, NULL, NULL, &ctx), 0);
    CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EINVAL);
    prepare(cached, IOCB_FLAG_HIPRI);
    CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EOPNOTSUPP);
    iocbs[0] = iocb_of(FSYNC, cached, NULL, 0, 0), iocbs[0].flags = IOCB_FLAG_HIPRI;
    CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EINVAL);
    iocbs[0] = iocb_of(POLL, cached, (void *)POLLIN, 0, 0), iocbs[0].flags = IOCB_FLAG_HIPRI;
    CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EINVAL);
    prepare(cached, IOCB_FLAG_HIPRI | RESFD);
    CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EINVAL);
    CHECK(io_destroy(ctx), 0);
}

/* What a file that is pinned may be used for is known from set-up on, and refused as that of others. */
static void fixed_files(int cached)
{
    context ctx = NULL;
    uintptr_t indices[] = {0, 1, 2};
    struct iocb **list = (struct iocb **)indices;
    struct io_event event;
    struct iovec vector = {buffers, 512};
    int reading = file_of("extended", O_RDONLY, 0), writing = file_of("extended", O_WRONLY, 0);
    prepare(cached, 0);
    iocbs[0].fd = reading, iocbs[1].fd = writing, iocbs[1].opcode = PWRITE, iocbs[2].fd = -1;
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDFILES, iocbs, NULL, NULL, &ctx), 0);
    /* Even when the number is another file's by now. */
    CHECK(dup2(cached, reading), reading);
    CHECK(dup2(cached, writing), writing);
    CHECK(io_submit(ctx, 1, list), 1);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.res, 4096);
    iocbs[0].opcode = PWRITE, iocbs[1].opcode = PREAD;
    CHECK(io_submit(ctx, 1, list), -EBADF);
    CHECK(io_submit(ctx, 1, list + 1), -EBADF);
    iocbs[0] = iocb_of(PWRITEV, reading, &vector, 1, 0), iocbs[1] = iocb_of(PREADV, writing, &vector, 1, 0);
    CHECK(io_submit(ctx, 1, list), -EBADF);
    CHECK(io_submit(ctx, 1, list + 1), -EBADF);
    CHECK(io_submit(ctx, 1, list + 2), -EBADF);
    iocbs[2] = iocb_of(FDSYNC, -1, NULL, 0, 0);
    CHECK(io_submit(ctx, 1, list + 2), -EBADF);
    iocbs[0] = iocb_of(PREADV, reading, &vector, 1, 0);
    CHECK(io_submit(ctx, 2, list), 1);
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.res, 512);
    /* Not the one that was pinned. */
    iocbs[0].fd = cached;
    CHECK(io_submit(ctx, 1, list), -EBADF);
    CHECK(io_destroy(ctx), 0);
    close(reading), close(writing);
}

/* What is pinned is the memory, not where it lies: what is mapped there later is not read into. */
static void fixed_buffers(int fd, unsigned more)
{
    enum { SIZE = NR * 4096 };
    context ctx = NULL;
    char *before = buffers;
    int memory = memfd_create("buffers", MFD_CLOEXEC);
    CHECK(ftruncate(memory, SIZE), 0);
    char *pinned = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    buffers = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    prepare(fd, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS | more, iocbs, NULL, NULL, &ctx), 0);
    char *other = mmap(buffers, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(other == buffers, 1);
    memset(other, 99, SIZE);
    uintptr_t indices[NR];
    struct io_event events[NR];
    long wrong = 0, strange = 0;
    for (int i = 0; i < NR; i++)
        indices[i] = i;
    CHECK(io_submit(ctx, NR, (struct iocb **)indices), NR);
    CHECK(io_getevents(ctx, NR, NR, events, NULL), NR);
    for (int i = 0; i < NR; i++)
        wrong += events[i].res != 4096;
    CHECK(wrong, 0);
    for (int i = 0; i < SIZE; i++)
        wrong += pinned[i] != (char)(i / 512), strange += other[i] != 99;
    CHECK(wrong, 0);
    CHECK(strange, 0);
    CHECK(io_destroy(ctx), 0);
    munmap(pinned, SIZE), munmap(other, SIZE), close(memory);
    buffers = before;
}

/* Requests lie within what was pinned: neither begin before it nor end behind it. */
static void outside_of_buffers(int fd, unsigned more)
{
    context ctx = NULL;
    uintptr_t index = 1;
    struct iocb **list = (struct iocb **)&index;
    struct io_event event;
    const struct { long shift; size_t bytes; int wanted; } parts[] = {
        {-512, 512, -EFAULT}, {-512, 4096, -EFAULT}, {-512, 4096 + 512, -EFAULT}, {-512, 4096 + 1024, -EFAULT},
        {512, 4096, -EFAULT}, {4096, 512, -EFAULT}, {0, 4096 + 512, -EFAULT},
        {0, 512, 1}, {512, 4096 - 512, 1}, {4096 - 512, 512, 1},
    };
    prepare(fd, 0);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS | more, iocbs, NULL, NULL, &ctx), 0);
    memset(buffers, 77, NR * 4096);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        iocbs[1] = iocb_of(PREAD, fd, buffers + 4096 + parts[i].shift, parts[i].bytes, 0);
        CHECK(io_submit(ctx, 1, list), parts[i].wanted);
        if (parts[i].wanted != 1)
            continue;
        CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
        CHECK(event.res, parts[i].bytes);
    }
    CHECK(buffers[4095], 77);
    CHECK(buffers[8192], 77);
    CHECK(io_destroy(ctx), 0);
}

/* In a process of its own: one may not lock more memory later, nor get a capability back. Half of the buffers would do, so that
   there is room for what others of this user have, and for a ring, which recent kernels count as well. */
static void limit_of_pinned(int fd)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        enum { EACH = 4 << 20 };
        struct rlimit limit;
        char *memory = mmap(NULL, NR * EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct { uint32_t version; int pid; } header = {0x20080522, 0};
        struct { uint32_t effective, permitted, inheritable; } rights[2];
        context ctx = NULL;
        CHECK(syscall(SYS_capget, &header, rights), 0);
        /* CAP_IPC_LOCK, which is not held to the limit. */
        rights[0].effective &= ~(1U << 14);
        CHECK(syscall(SYS_capset, &header, rights), 0);
        CHECK(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
        if (limit.rlim_max > NR / 2 * EACH)
            limit.rlim_max = NR / 2 * EACH;
        limit.rlim_cur = limit.rlim_max;
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
        prepare(fd, 0);
        for (int i = 0; i < NR; i++)
            iocbs[i].buf = (uintptr_t)memory + i * EACH, iocbs[i].nbytes = EACH;
        CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDBUFS, iocbs, NULL, NULL, &ctx), -ENOMEM);
        CHECK(ctx == NULL, 1);
        CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, iocbs, NULL, NULL, &ctx), 0);
        CHECK(io_destroy(ctx), 0);
        fflush(stdout);
        _exit(failed);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(status, 0);
}

/* A context goes also when what is in flight would never end. */
static void endless(unsigned more)
{
    context ctx = NULL;
    uintptr_t indices[] = {0, 1};
    int empty[2];
    char byte;
    CHECK(pipe(empty), 0);
    prepare(empty[0], 0);
    iocbs[0] = iocb_of(POLL, empty[0], (void *)POLLIN, 0, 0);
    iocbs[1].nbytes = 1;
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | more, iocbs, NULL, NULL, &ctx), 0);
    CHECK(io_submit(ctx, 2, (struct iocb **)indices), 2);
    alarm(30);
    CHECK(io_destroy(ctx), 0);
    alarm(0);
    /* And takes nothing later. */
    CHECK(write(empty[1], "x", 1), 1);
    CHECK(read(empty[0], &byte, 1), 1);
    close(empty[0]), close(empty[1]);
}

/* More contexts than there is room for, each of which costs a ring: as the manual says. */
static void too_many(void)
{
    enum { MANY = 2000 };
    static context many[MANY];
    int count = 0, code = 0;
    while (count < MANY && (code = io_setup2(1, IOCTX_FLAG_SQWQ, NULL, NULL, NULL, &many[count])) == 0)
        count++;
    CHECK(code == -EAGAIN || code == -EMFILE, 1);
    if (code == -EAGAIN)
        CHECK(count > 16 && count <= 512 && !many[count], 1);
    else
        fprintf(stderr, "only %d contexts: the limit of open files is too small for more\n", count);
    while (count > 0)
        CHECK(io_destroy(many[--count]), 0);
}

static void child(void)
{
    context ctx = NULL;
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, iocbs, NULL, NULL, &ctx), 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        uintptr_t index = 0;
        struct io_event event;
        CHECK(io_submit(ctx, 1, (struct iocb **)&index), -EINVAL);
        CHECK(io_getevents(ctx, 0, 1, &event, NULL), -EINVAL);
        CHECK(io_destroy(ctx), -EINVAL);
        _exit(failed);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(status, 0);
    CHECK(io_destroy(ctx), 0);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    buffers = aligned_alloc(4096, NR * 4096);
    memset(buffers, 1, NR * 4096);
    int cached = filled("extended", O_RDWR, NR * 4096), direct = file_of("extended", O_RDWR | O_DIRECT, 0);
    refusals(cached);
    const unsigned flags[] = {0, IOCTX_FLAG_FIXEDBUFS, IOCTX_FLAG_SQTHREAD,
        IOCTX_FLAG_SQTHREAD | IOCTX_FLAG_FIXEDBUFS, IOCTX_FLAG_SQWQ, IOCTX_FLAG_SQTHREAD | IOCTX_FLAG_SQPOLL,
        IOCTX_FLAG_FIXEDFILES, IOCTX_FLAG_FIXEDFILES | IOCTX_FLAG_FIXEDBUFS | IOCTX_FLAG_SQTHREAD};
    for (int i = 0; i < 8; i++) {
        by_index(cached, flags[i]);
        by_index(direct, flags[i]);
        rings(cached, flags[i]);
        rings(direct, flags[i]);
    }
    counts(cached);
    others_may_submit(cached);
    interrupted(cached, 0);
    interrupted(cached, IOCTX_FLAG_IOPOLL);
    threads(cached);
    pointers(direct);
    polled(cached, 0);
    polled(cached, IOCTX_FLAG_FIXEDFILES);
    fixed_files(cached);
    fixed_buffers(cached, 0);
    fixed_buffers(direct, 0);
    fixed_buffers(direct, IOCTX_FLAG_FIXEDFILES);
    outside_of_buffers(cached, 0);
    outside_of_buffers(cached, IOCTX_FLAG_FIXEDFILES);
    outside_of_buffers(cached, IOCTX_FLAG_SQTHREAD);
    limit_of_pinned(cached);
    endless(0);
    endless(IOCTX_FLAG_SQTHREAD);
    endless(IOCTX_FLAG_SQWQ);
    too_many();
    child();
    return failed;
}
