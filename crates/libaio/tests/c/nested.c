/* Calls while another is under way, for as long as a signal's handler that interrupted it likes: on contexts of io_setup2 from that
 * handler, on an ordinary one by another thread. */
#include "aio.h"
#include "../../include/nvlane_aio.h"
#include <semaphore.h>

enum { NR = 16, PAGE = 4096 };
static struct iocb *iocbs;
static struct aio_sq_ring *sq;
static struct aio_cq_ring *cq;
static struct io_event *places;
static context ctx;
static int ends[2];

/* What the handler has been answered: io_submit or io_ring_enter, then io_getevents for at least one event, and for none. */
static long submitted, awaited, looked;

static char *page(void)
{
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 0, PAGE);
    return memory;
}

/* Of a memory that the library reads or writes under a lock: so it is surely held when the handler runs. */
static void *closed;
static void (*inner)(void);
static void on_fault(int number, siginfo_t *info, void *unused)
{
    (void)number, (void)unused;
    if (info->si_addr < closed || (char *)info->si_addr >= (char *)closed + PAGE)
        _exit(4);
    inner();
    mprotect(closed, PAGE, PROT_READ | PROT_WRITE);
}

/* The next access to the page interrupts whoever makes it. */
static void interrupts(void *memory, void (*calls)(void))
{
    closed = memory, inner = calls, submitted = awaited = looked = 12345;
    mprotect(memory, PAGE, PROT_NONE);
}

static uintptr_t second = 1;
static void by_index(void)
{
    struct io_event event;
    struct timespec none = {0, 0};
    submitted = io_submit(ctx, 1, (struct iocb **)&second);
    awaited = io_getevents(ctx, 1, 1, &event, NULL);
    looked = io_getevents(ctx, 0, 1, &event, &none);
}

static void by_ring(void)
{
    submitted = io_ring_enter(ctx, 1, 0, IORING_FLAG_SUBMIT);
    awaited = io_ring_enter(ctx, 0, 1, IORING_FLAG_GETEVENTS);
    looked = io_ring_enter(ctx, 0, 0, IORING_FLAG_GETEVENTS);
}

static void prepare(int fd, char *buffers)
{
    for (int i = 0; i < NR; i++)
        iocbs[i] = iocb_of(PREAD, fd, buffers + 512 * i, 512, 512 * i);
    /* Its event comes when we want. */
    iocbs[0] = iocb_of(POLL, ends[0], (void *)1, 0, 0);
}

/* The context that is used in the handler is the one at which the thread was at work. */
static void indices(int fd, char *buffers, unsigned more)
{
    uintptr_t first = 0;
    struct io_event *events = (struct io_event *)page();
    prepare(fd, buffers);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | more, iocbs, NULL, NULL, &ctx), 0);
    /* While it submits: the handler's request is not taken, and it does not wait for what may never come. */
    interrupts(iocbs, by_index);
    CHECK(io_submit(ctx, 1, (struct iocb **)&first), 1);
    CHECK(submitted, -EAGAIN);
    CHECK(awaited, -EINTR);
    CHECK(looked, 0);
    CHECK(write(ends[1], "", 1), 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].obj, 0);
    /* While it takes events: submitting goes on, and no event is taken twice or lost. */
    CHECK(io_submit(ctx, 1, (struct iocb **)&first), 1);
    interrupts(events, by_index);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    CHECK(submitted, 1);
    CHECK(awaited, -EINTR);
    CHECK(looked, 0);
    CHECK(events[0].obj, 0);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    CHECK(events[0].obj, 1);
    CHECK(io_destroy(ctx), 0);
    char byte;
    CHECK(read(ends[0], &byte, 1), 1);
    munmap(events, PAGE), ctx = NULL;
}

static void put(uint32_t index)
{
    sq->array[sq->tail % NR] = index;
    __atomic_store_n(&sq->tail, sq->tail + 1, __ATOMIC_RELEASE);
}

static void rings(int fd, char *buffers)
{
    sq = (void *)page(), cq = (void *)page(), places = (struct io_event *)(cq + 1);
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    prepare(fd, buffers);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, sq, cq, &ctx), 0);
    put(0);
    interrupts(sq, by_ring);
    CHECK(io_ring_enter(ctx, 1, 0, IORING_FLAG_SUBMIT), 1);
    CHECK(submitted, -EAGAIN);
    /* Nothing is in flight, so there is nothing to wait for. */
    CHECK(awaited, 0);
    CHECK(looked, 0);
    CHECK(sq->head, 1);
    put(1);
    CHECK(write(ends[1], "", 1), 1);
    interrupts(cq, by_ring);
    CHECK(io_ring_enter(ctx, 0, 2, IORING_FLAG_GETEVENTS), 2);
    CHECK(submitted, 1);
    CHECK(awaited, -EINTR);
    CHECK(looked, 0);
    CHECK(sq->head, 2);
    CHECK(cq->tail, 2);
    CHECK(places[0].obj + places[1].obj, 1);
    CHECK(io_destroy(ctx), 0);
    char byte;
    CHECK(read(ends[0], &byte, 1), 1);
    munmap(sq, PAGE), munmap(cq, PAGE), ctx = NULL;
}

/* An ordinary context, at which a thread is at work for as long as nobody has cancelled the poll. */
static pthread_mutex_t at_work = PTHREAD_MUTEX_INITIALIZER;
static sem_t working;
static void while_at_work(void)
{
    sem_post(&working);
    pthread_mutex_lock(&at_work);
    pthread_mutex_unlock(&at_work);
}

static void *submits(void *iocb)
{
    return (void *)(long)submit_one(ctx, iocb);
}

static void *submits_late(void *argument)
{
    struct other *other = argument;
    other->id = syscall(SYS_gettid);
    return (void *)(long)submit_one(other->ctx, other->iocb);
}

/* A thread that takes long to submit keeps no other from cancelling. */
static void cancels(int fd, char *buffers)
{
    ctx = made(NR, 1);
    struct iocb poll = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0), *read = (struct iocb *)page();
    struct io_event event, *events = (struct io_event *)page();
    struct timespec none = {0, 0};
    *read = iocb_of(PREAD, fd, buffers, 512, 0);
    CHECK(outcome(ctx, *read), 512);
    /* The page is met. */
    CHECK(submit_one(ctx, read), 1);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    CHECK(submit_one(ctx, &poll), 1);
    sem_init(&working, 0, 0);
    pthread_mutex_lock(&at_work);
    interrupts(read, while_at_work);
    pthread_t thread;
    void *code;
    pthread_create(&thread, NULL, submits, read);
    sem_wait(&working);
    CHECK(io_cancel(ctx, &poll, &event), -EINPROGRESS);
    CHECK(io_cancel(ctx, &poll, &event), -EINVAL);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].obj == (uintptr_t)&poll, 1);
    CHECK(events[0].res, 0);
    CHECK(io_getevents(ctx, 0, NR, events, &none), 0);
    pthread_mutex_unlock(&at_work);
    pthread_join(thread, &code);
    CHECK(code, 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(events[0].obj == (uintptr_t)read, 1);
    CHECK(io_destroy(ctx), 0);
    munmap(events, PAGE), munmap(read, PAGE), ctx = NULL;
}

/* What the kernel has taken is not looked at again: its event may be taken, and its memory be gone, before io_submit comes back. */
static void gone(int fd, char *buffers)
{
    int full[2];
    ctx = made(NR, 1);
    struct iocb *write_of = (struct iocb *)page(), *read_of = (struct iocb *)page();
    struct io_event *events = (struct io_event *)page();
    *read_of = iocb_of(PREAD, fd, buffers, 512, 0), *write_of = *read_of;
    for (int i = 0; i < 2; i++) {
        /* The pages are met. */
        CHECK(submit_one(ctx, i ? read_of : write_of), 1);
        CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    }
    CHECK(pipe2(full, O_NONBLOCK), 0);
    while (write(full[1], buffers, PAGE) > 0)
        ;
    CHECK(fcntl(full[1], F_SETFL, 0), 0);
    *write_of = iocb_of(PWRITE, full[1], buffers, PAGE, 0);
    struct other first = {.ctx = ctx, .iocb = write_of};
    start(&first, submits_late);
    /* Another one has the lock when it comes back. */
    sem_init(&working, 0, 0);
    pthread_mutex_lock(&at_work);
    interrupts(read_of, while_at_work);
    pthread_t second;
    void *code;
    pthread_create(&second, NULL, submits, read_of);
    sem_wait(&working);
    CHECK(read(full[0], buffers, NR * 512) > 0, 1);
    CHECK(io_getevents(ctx, 1, 1, events, NULL), 1);
    CHECK(events[0].obj == (uintptr_t)write_of, 1);
    CHECK(munmap(write_of, PAGE), 0);
    pthread_mutex_unlock(&at_work);
    CHECK(ended(&first), 1);
    pthread_join(second, &code);
    CHECK(code, 1);
    CHECK(io_getevents(ctx, 1, NR, events, NULL), 1);
    CHECK(io_destroy(ctx), 0);
    close(full[0]), close(full[1]);
    munmap(events, PAGE), munmap(read_of, PAGE), ctx = NULL;
}

/* A handler that submits, wherever the thread was. */
static volatile long taken, refused, others, flying;
static void on_timer(int number)
{
    if (flying || !number)
        return;
    flying = 1;
    int code = io_submit(ctx, 1, (struct iocb **)&second);
    if (code == 1)
        taken++;
    else if (flying = 0, code == -EAGAIN)
        refused++;
    else
        others++;
}

/* Takes events until this one has come, and counts the handler's. */
static long await(uintptr_t index)
{
    long of_handler = 0;
    for (int came = 0; !came;) {
        struct io_event events[NR];
        int code = io_getevents(ctx, 1, NR, events, NULL);
        if (code < 0 && code != -EINTR)
            CHECK(code, 1);
        for (int i = 0; i < code; i++) {
            came |= events[i].obj == index;
            if (events[i].res != 512)
                CHECK(events[i].res, 512);
            if (events[i].obj == second)
                of_handler++, flying = 0;
        }
    }
    return of_handler;
}

static void at_any_time(int fd, char *buffers)
{
    uintptr_t third = 2;
    long seen = 0;
    prepare(fd, buffers);
    CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB, iocbs, NULL, NULL, &ctx), 0);
    struct sigaction action = {.sa_handler = on_timer};
    sigaction(SIGUSR1, &action, NULL);
    /* Not SIGALRM's, which `main` has set. */
    struct sigevent told = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {{0, 100000}, {0, 100000}};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &told, &timer), 0);
    CHECK(timer_settime(timer, 0, &often, NULL), 0);
    for (int round = 0; round < 3000 || taken + refused == 0; round++) {
        int code;
        while ((code = io_submit(ctx, 1, (struct iocb **)&third)) == -EINTR)
            ;
        if (code != 1)
            CHECK(code, 1);
        seen += await(third);
    }
    CHECK(timer_delete(timer), 0);
    signal(SIGUSR1, SIG_IGN);
    fprintf(stderr, "from the handler: %ld taken, %ld refused\n", taken, refused);
    if (flying)
        seen += await(second);
    CHECK(others, 0);
    CHECK(taken + refused > 0, 1);
    CHECK(seen - taken, 0);
    CHECK(io_destroy(ctx), 0);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    char *buffers = mmap(NULL, NR * 512, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    iocbs = (struct iocb *)page();
    int fd = filled("nested", O_RDONLY, NR * 512);
    CHECK(pipe(ends), 0);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    /* Whoever waits for himself waits for ever. */
    alarm(60);
    indices(fd, buffers, 0);
    indices(fd, buffers, IOCTX_FLAG_SQTHREAD);
    rings(fd, buffers);
    cancels(fd, buffers);
    gone(fd, buffers);
    at_any_time(fd, buffers);
    return failed;
}
