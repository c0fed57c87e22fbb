/* Contexts that are now given few requests at a time, past the page cache, and now many: whichever way these go, each has one event.
 *
 * depth few DIRECTORY        single reads; prints how many
 * depth prompt DIRECTORY     one at a time, each waited for at once; what is wrong in between is told as ever
 * depth beside DIRECTORY     the same, while another thread submits now and then
 * depth late DIRECTORY       the same, with something to do between the two calls
 * depth limited DIRECTORY    the same as the first, with a limit of time
 * depth again DIRECTORY      twos for long enough, then as the first
 * depth deep DIRECTORY       one by one, 32 of them in flight; prints how many
 * depth waves DIRECTORY      the same, then lists, again and again, without waiting for what is in flight
 * depth turns DIRECTORY      few, then lists, again and again, by one thread
 * depth threads DIRECTORY    the same by two threads that submit, while a third waits for events, for as long as it takes
 * depth reapers DIRECTORY    the same, and a fourth waits again and again for a moment
 */
#include "aio.h"
#include <sys/resource.h>

enum { BYTES = 4096, BLOCKS = 64, LIST = 8, FEW = 600, SLOTS = 64 };

static context ctx;
static int fd;
static char *memory;

/* One request of many at a time, each known by its slot. */
struct slot {
    struct iocb iocb;
    volatile int busy;
};

static void begin(struct slot *slot, char *buffer, unsigned number)
{
    slot->iocb = iocb_of(PREAD, fd, buffer, BYTES, (off_t)(number % BLOCKS) * BYTES);
    slot->iocb.data = (uintptr_t)slot;
    __atomic_store_n(&slot->busy, 1, __ATOMIC_SEQ_CST);
}

static void came(const struct io_event *event)
{
    struct slot *slot = (struct slot *)(uintptr_t)event->data;
    if (event->res != BYTES || event->obj != (uintptr_t)&slot->iocb)
        CHECK(event->res, BYTES);
    /* What filled() has put there. */
    const char *buffer = (const char *)(uintptr_t)slot->iocb.buf;
    if (buffer[0] != (char)(slot->iocb.offset / 512))
        CHECK(buffer[0], (char)(slot->iocb.offset / 512));
    if (__atomic_exchange_n(&slot->busy, 0, __ATOMIC_SEQ_CST) != 1)
        CHECK("an event that was there already" == NULL, 1);
}

static void submit_all(struct iocb **list, int count)
{
    while (count > 0) {
        int code = io_submit(ctx, count, list);
        if (code == -EAGAIN) {
            usleep(50);
            continue;
        }
        if (code < 1) {
            CHECK(code, count);
            exit(1);
        }
        list += code, count -= code;
    }
}

static void take(int wanted)
{
    struct io_event events[LIST];
    while (wanted > 0) {
        int code = io_getevents(ctx, 1, wanted < LIST ? wanted : LIST, events, NULL);
        if (code < 1) {
            CHECK(code, wanted);
            exit(1);
        }
        for (int i = 0; i < code; i++)
            came(&events[i]);
        wanted -= code;
    }
}

/* Lists of so many, one after another. */
static void lists(struct slot *slots, char *buffers, int count, int rounds)
{
    struct iocb *list[LIST];
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            begin(&slots[i], buffers + i * BYTES, round + i);
            list[i] = &slots[i].iocb;
        }
        submit_all(list, count);
        take(count);
    }
}

static void few(int in_use)
{
    static struct slot slots[2];
    (void)in_use;
    lists(slots, memory, 1, 10 * FEW);
    lists(slots, memory, 2, 10 * FEW);
    printf("single reads: %d\n", 10 * FEW + 2 * 10 * FEW);
}

/* Reads and writes that go by turns, so that each read finds what was written before it; gives back the last result. */
static long ones(int count, int is_late, struct timespec *limit)
{
    static struct iocb iocb;
    struct iocb *list = &iocb;
    struct io_event event = {0};
    for (int i = 0; i < count; i++) {
        char *buffer = memory + (i % 2) * BYTES;
        if (i % 2 == 0)
            memset(buffer, i / 2, BYTES);
        iocb = iocb_of(i % 2 ? PREAD : PWRITE, fd, buffer, BYTES, BLOCKS / 2 * BYTES);
        iocb.data = i;
        submit_all(&list, 1);
        for (double until = seconds() + 3e-5; is_late && seconds() < until;)
            ;
        int code = io_getevents(ctx, 1, 1, &event, limit);
        if (code != 1 || event.data != (unsigned)i || event.obj != (uintptr_t)&iocb || event.res != BYTES)
            CHECK(code, event.res);
        if (i % 2 && buffer[17] != (char)(i / 2))
            CHECK(buffer[17], (char)(i / 2));
    }
    return event.res;
}

static volatile int exceeded;
static void on_excess(int number) { exceeded += number != 0; }

static void prompt(int in_use)
{
    (void)in_use;
    struct rlimit limit = {BLOCKS / 4 * BYTES, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, on_excess);
    CHECK(ones(1000, 0, NULL), BYTES);
    /* A write that fails is not tried twice. */
    setrlimit(RLIMIT_FSIZE, &limit);
    long code = outcome(ctx, iocb_of(PWRITE, fd, memory, BYTES, BLOCKS / 4 * BYTES));
    setrlimit(RLIMIT_FSIZE, &none);
    CHECK(code, -EFBIG);
    CHECK(exceeded, 1);
    CHECK(ones(1000, 0, NULL), BYTES);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, memory, BYTES, BLOCKS * BYTES)), 0);
    CHECK(ones(1000, 0, NULL), BYTES);
    CHECK(outcome(ctx, iocb_of(PREAD, fd, memory, 2 * BYTES, (BLOCKS - 1) * BYTES)), BYTES);
    CHECK(ones(1000, 0, NULL), BYTES);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, memory + 1, BYTES, 0)));
    CHECK(ones(1000, 0, NULL), BYTES);
    SHOW(outcome(ctx, iocb_of(PREAD, fd, (void *)8192, BYTES, 0)));
    CHECK(ones(1000, 0, NULL), BYTES);
    /* A number that stands for another file now, which may not be written. */
    int other = file_of("depth", O_RDONLY | O_DIRECT, 0), kept = dup(fd);
    dup2(other, fd);
    CHECK(outcome(ctx, iocb_of(PWRITE, fd, memory, BYTES, 0)), -100000 - EBADF);
    dup2(kept, fd);
    close(kept), close(other);
    CHECK(ones(1000, 0, NULL), BYTES);
    /* An append that the limit of files cuts short: once, and not the rest of it again. */
    int appended = filled("appended", O_RDWR | O_APPEND | O_DIRECT, BLOCKS * BYTES);
    limit.rlim_cur = (BLOCKS + 2) * BYTES;
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK(outcome(ctx, iocb_of(PWRITE, appended, memory, BYTES, 0)), BYTES);
    CHECK(ones(1000, 0, NULL), BYTES);
    CHECK(outcome(ctx, iocb_of(PWRITE, appended, memory, 2 * BYTES, 0)), BYTES);
    CHECK(lseek(appended, 0, SEEK_END), (BLOCKS + 2) * BYTES);
    CHECK(exceeded, 1);
    close(appended);
    CHECK(ones(1000, 0, NULL), BYTES);
    /* Two at a time. */
    static struct slot slots[2];
    lists(slots, memory, 2, 10);
    CHECK(ones(1000, 0, NULL), BYTES);
}

static volatile int is_over;

static void *comes_back_at_once(void *argument)
{
    struct iocb iocb, *list = &iocb;
    struct io_event event;
    (void)argument;
    while (!is_over) {
        iocb = iocb_of(PREAD, fd, memory, BYTES, 0);
        submit_all(&list, 1);
        /* Its own, or the other's: there is one for each. */
        if (io_getevents(ctx, 1, 1, &event, NULL) != 1 || event.res != BYTES)
            CHECK(event.res, BYTES);
    }
    return NULL;
}

/* One that is never away from the context for long, and another that wants to submit as well. */
static void beside(int in_use)
{
    static struct iocb iocbs[10];
    struct io_event event;
    pthread_t other;
    (void)in_use;
    pthread_create(&other, NULL, comes_back_at_once, NULL);
    for (int i = 0; i < 10; i++) {
        struct iocb *list = &iocbs[i];
        /* Long enough for the other to be known. */
        usleep(200000);
        iocbs[i] = iocb_of(PREAD, fd, memory + BYTES, BYTES, BYTES);
        double begun = seconds();
        submit_all(&list, 1);
        if (seconds() - begun > 20)
            CHECK(seconds() - begun, 20);
        CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    }
    is_over = 1;
    pthread_join(other, NULL);
}

static void late(int in_use)
{
    (void)in_use;
    CHECK(ones(1000, 1, NULL), BYTES);
}

static void limited(int in_use)
{
    struct timespec minute = {60, 0};
    (void)in_use;
    CHECK(ones(1000, 0, &minute), BYTES);
}

static void again(int in_use)
{
    static struct slot slots[2];
    (void)in_use;
    lists(slots, memory, 2, FEW);
    CHECK(ones(12000, 0, NULL), BYTES);
}

static void turns(int in_use)
{
    static struct slot slots[LIST];
    (void)in_use;
    for (int turn = 0; turn < 20; turn++) {
        lists(slots, memory, 1 + turn % 2, FEW);
        lists(slots, memory, 3 + turn % (LIST - 2), 20);
    }
}

/* So many more by lists of that length, for as long as 32 are in flight. */
static void keep(struct slot *slots, int length, int count)
{
    enum { DEPTH = 32 };
    struct iocb *list[LIST];
    struct io_event events[LIST];
    for (int submitted = 0; submitted < count;) {
        int found = 0;
        for (int i = 0; i < DEPTH && found < length; i++)
            if (!slots[i].busy) {
                begin(&slots[i], memory + i * BYTES, submitted + i);
                list[found++] = &slots[i].iocb;
            }
        submit_all(list, found);
        submitted += found;
        int busy = 0;
        for (int i = 0; i < DEPTH; i++)
            busy += slots[i].busy;
        if (busy + length <= DEPTH)
            continue;
        int code = io_getevents(ctx, 1, LIST, events, NULL);
        if (code < 1) {
            CHECK(code, 1);
            exit(1);
        }
        for (int i = 0; i < code; i++)
            came(&events[i]);
    }
}

static void take_all(struct slot *slots)
{
    for (int i = 0; i < SLOTS; i++)
        while (slots[i].busy)
            take(1);
}

static void deep(int in_use)
{
    static struct slot slots[SLOTS];
    (void)in_use;
    keep(slots, 1, 20000);
    take_all(slots);
    printf("one by one: %d\n", 20000);
}

static void waves(int in_use)
{
    static struct slot slots[SLOTS];
    (void)in_use;
    for (int turn = 0; turn < 20; turn++) {
        keep(slots, 1 + turn % 2, FEW);
        keep(slots, LIST, 10 * LIST);
    }
    take_all(slots);
}

static volatile int submitting, in_flight;

static void *submits(void *argument)
{
    static struct slot all[2][SLOTS];
    struct slot *slots = all[(long)argument];
    char *buffers = memory + (1 + (long)argument) * SLOTS * BYTES;
    unsigned seed = 1 + (long)argument;
    for (int turn = 0; turn < 24; turn++) {
        /* Now one at a time for long enough, now lists, now in the middle of either. */
        int count = turn % 2 ? 3 + rand_r(&seed) % (LIST - 2) : 1;
        int rounds = turn % 2 ? 5 + rand_r(&seed) % 20 : FEW + rand_r(&seed) % 100;
        for (int round = 0; round < rounds; round++) {
            struct iocb *list[LIST];
            int found = 0;
            for (int i = 0; found < count; i = (i + 1) % SLOTS) {
                if (!__atomic_load_n(&slots[i].busy, __ATOMIC_SEQ_CST)) {
                    begin(&slots[i], buffers + i * BYTES, round + i);
                    list[found++] = &slots[i].iocb;
                } else if (count == 1) {
                    usleep(20);
                    i = -1;
                }
            }
            __atomic_fetch_add(&in_flight, found, __ATOMIC_SEQ_CST);
            submit_all(list, found);
        }
    }
    __atomic_fetch_sub(&submitting, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *reaps(void *argument)
{
    struct io_event events[LIST];
    struct timespec brief = {0, 1000000};
    while (submitting || in_flight) {
        /* One waits for ever as long as anything is submitted, so that only an event can wake it. */
        int is_patient = !argument && submitting;
        int code = io_getevents(ctx, 1, LIST, events, is_patient ? NULL : &brief);
        if (code < 0 && (submitting || code != -EINTR))
            CHECK(code, 0);
        for (int i = 0; i < code; i++)
            came(&events[i]);
        if (code > 0)
            __atomic_fetch_sub(&in_flight, code, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void nothing(int number)
{
    (void)number;
}

static void threads(int reapers)
{
    pthread_t all[4];
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    submitting = 2;
    for (long i = 0; i < 2; i++)
        pthread_create(&all[i], NULL, submits, (void *)i);
    for (long i = 0; i < reapers; i++)
        pthread_create(&all[2 + i], NULL, reaps, (void *)i);
    pthread_join(all[0], NULL), pthread_join(all[1], NULL);
    while (in_flight)
        usleep(1000);
    /* The one that waits for ever is told by a signal, which may come too early. */
    while (pthread_tryjoin_np(all[2], NULL)) {
        pthread_kill(all[2], SIGUSR1);
        usleep(1000);
    }
    if (reapers > 1)
        pthread_join(all[3], NULL);
    CHECK(in_flight, 0);
}

static const struct test_case cases[] = {
    {"few", few}, {"prompt", prompt}, {"late", late}, {"limited", limited}, {"again", again}, {"beside", beside}, {"deep", deep}, {"waves", waves}, {"turns", turns}, {"threads", threads}, {"reapers", threads}, {NULL, NULL},
};

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    memory = aligned_alloc(BYTES, 4 * SLOTS * BYTES);
    close(filled("depth", O_RDONLY, BLOCKS * BYTES));
    fd = file_of("depth", O_RDWR | O_DIRECT, 0);
    for (const struct test_case *it = cases; it->name; it++)
        if (!strcmp(arguments[1], it->name)) {
            CHECK(io_setup(2 * SLOTS, &ctx), 0);
            it->run(1 + !strcmp(it->name, "reapers"));
            CHECK(io_destroy(ctx), 0);
        }
    return failed;
}
