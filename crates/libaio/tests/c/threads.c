/* Contexts that several threads have: who submits, who waits, who ends. */
#include "aio.h"
#include <sched.h>
#include <sys/prctl.h>

static char buffer[1 << 20] __attribute__((aligned(4096)));

#define ROUNDS 2000
static context shared;
static int shared_fd, shared_direct;
static volatile long reaped;
static unsigned char seen[4][ROUNDS];

static void *submitter(void *argument)
{
    long self = (long)argument;
    char *own = aligned_alloc(4096, 4096 * 64);
    static struct iocb iocbs[4][ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        struct iocb *iocb = &iocbs[self][i], *list = iocb;
        *iocb = iocb_of(PREAD, i % 3 ? shared_fd : shared_direct, own + 4096 * (i % 64), 4096, 4096 * (i % 4));
        iocb->data = self * ROUNDS + i;
        int code;
        while ((code = io_submit(shared, 1, &list)) == -EAGAIN)
            usleep(100);
        if (code != 1) {
            CHECK(code, 1);
            break;
        }
    }
    return NULL;
}

static void *reaper(void *argument)
{
    struct io_event events[16];
    struct timespec tenth = {0, 100000000};
    while (reaped < 4 * ROUNDS) {
        int count = io_getevents(shared, argument ? 3 : 1, 16, events, &tenth);
        for (int i = 0; i < count; i++) {
            if (events[i].res != 4096)
                CHECK(events[i].res, 4096);
            __atomic_fetch_add(&seen[events[i].data / ROUNDS][events[i].data % ROUNDS], 1, __ATOMIC_RELAXED);
        }
        if (count > 0)
            __atomic_fetch_add(&reaped, count, __ATOMIC_RELAXED);
        else if (count < 0)
            CHECK(count, 0);
    }
    return NULL;
}

static void threads(int in_use)
{
    shared = made(32, in_use);
    shared_fd = filled("threads", O_RDONLY, 16384);
    shared_direct = file_of("threads", O_RDONLY | O_DIRECT, 0);
    reaped = 0;
    memset(seen, 0, sizeof seen);
    pthread_t all[6];
    for (long i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, submitter, (void *)i);
    for (long i = 0; i < 2; i++)
        pthread_create(&all[4 + i], NULL, reaper, (void *)i);
    for (int i = 0; i < 6; i++)
        pthread_join(all[i], NULL);
    int wrong = 0;
    for (int i = 0; i < 4 * ROUNDS; i++)
        wrong += seen[i / ROUNDS][i % ROUNDS] != 1;
    CHECK(wrong, 0);
    CHECK(reaped, 4 * ROUNDS);
    CHECK(io_destroy(shared), 0);
    close(shared_fd), close(shared_direct);
}

/*
 * A thread that waits for more events than come while another takes each: no signal is sent, so none interrupts it. Timers on
 * its processor come between any two of its instructions, the kernel's among them.
 */
static volatile int over;

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *taker(void *argument)
{
    int *ends = argument;
    struct io_event events[64];
    struct timespec none = {0, 0};
    stay_on(0);
    while (!over) {
        struct iocb iocb = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
        if (submit_one(shared, &iocb) != 1)
            CHECK(over, 1);
        io_getevents(shared, 0, 64, events, &none);
    }
    return NULL;
}

static void *disturber(void *argument)
{
    struct timespec pause = {0, 30000};
    stay_on(1);
    prctl(PR_SET_TIMERSLACK, 1);
    while (!over)
        nanosleep(&pause, NULL);
    return argument;
}

static void misled(int in_use)
{
    int ends[2];
    shared = made(128, in_use);
    CHECK(pipe(ends), 0);
    CHECK(write(ends[1], "x", 1), 1);
    over = 0;
    pthread_t all[2];
    pthread_create(&all[0], NULL, taker, ends);
    pthread_create(&all[1], NULL, disturber, NULL);
    struct io_event events[100];
    long wrong = 0;
    double start = seconds();
    stay_on(1);
    while (seconds() - start < 1.5) {
        struct timespec moment = {0, 20000};
        wrong += io_getevents(shared, 100, 100, events, &moment) < 0;
    }
    over = 1;
    CHECK(wrong, 0);
    pthread_join(all[0], NULL), pthread_join(all[1], NULL);
    CHECK(io_destroy(shared), 0);
    close(ends[0]), close(ends[1]);
}

static void *late_submitter(void *argument)
{
    usleep(100000);
    struct iocb *iocb = argument;
    return (void *)(long)io_submit(shared, 1, &iocb);
}

/* A thread that waits already gets what another submits then, whichever way it goes. */
static void waiting(int in_use)
{
    int files[] = {filled("waiting", O_RDONLY, 4096), file_of("waiting", O_RDONLY | O_DIRECT, 0), -1};
    int ends[2];
    CHECK(pipe(ends), 0);
    CHECK(write(ends[1], "abc", 3), 3);
    files[2] = ends[0];
    for (int i = 0; i < 3; i++) {
        shared = made(8, in_use);
        struct iocb iocb = iocb_of(PREAD, files[i], buffer, 512, 0);
        struct io_event event;
        pthread_t thread;
        void *code;
        if (files[i] == ends[0])
            iocb.nbytes = 3;
        pthread_create(&thread, NULL, late_submitter, &iocb);
        CHECK(io_getevents(shared, 1, 1, &event, NULL), 1);
        CHECK(event.res, i == 2 ? 3 : 512);
        pthread_join(thread, &code);
        CHECK(code, 1);
        CHECK(io_destroy(shared), 0);
    }
}

static void *waits_for_many(void *argument)
{
    struct other *other = argument;
    struct io_event many[64];
    struct timespec half = {0, 500000000};
    other->id = syscall(SYS_gettid);
    while (!over)
        io_getevents(other->ctx, 64, 64, many, &half);
    return NULL;
}

static void *tells_when_over(void *argument)
{
    void *count = waits_for_two(argument);
    over = 1;
    return count;
}

/* Who waits for two gets two, also beside one who has waited for longer, and for more than come. */
static void beside(int in_use)
{
    int fd = filled("beside", O_RDONLY, 4096);
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    struct io_event event;
    struct timespec soon = {0, 10000000};
    struct other many = {.ctx = made(100, in_use)}, two = {.ctx = many.ctx};
    over = 0;
    start(&many, waits_for_many);
    /* Either may get it, and who waited first is asked first. */
    do
        submit_one(two.ctx, &iocb);
    while (io_getevents(two.ctx, 1, 1, &event, &soon) == 0);
    start(&two, tells_when_over);
    while (!over) {
        submit_one(two.ctx, &iocb);
        usleep(20000);
    }
    CHECK(ended(&two) >= 2, 1);
    ended(&many);
    CHECK(io_destroy(many.ctx), 0);
    close(fd);
}

static void *waits_for_one(void *argument)
{
    struct other *other = argument;
    struct io_event event;
    other->id = syscall(SYS_gettid);
    return (void *)(long)io_getevents(other->ctx, 1, 1, &event, NULL);
}

static void destroying(int in_use)
{
    int fd = filled("destroying", O_RDONLY, sizeof buffer);
    int direct = file_of("destroying", O_RDONLY | O_DIRECT, 0);
    for (int round = 0; round < 10; round++) {
        context ctx = made(32, in_use);
        static struct iocb iocbs[16];
        struct iocb *list[16];
        memset(buffer, 0xee, sizeof buffer);
        for (int i = 0; i < 16; i++)
            iocbs[i] = iocb_of(PREAD, direct, buffer + 65536 * i, 65536, 65536 * i), list[i] = &iocbs[i];
        CHECK(io_submit(ctx, 16, list), 16);
        CHECK(io_destroy(ctx), 0);
        /* All were read by now: what changes from here on is ours. */
        int wrong = 0;
        for (size_t i = 0; i < sizeof buffer; i += 512)
            wrong += buffer[i] != (char)(i / 512);
        CHECK(wrong, 0);
    }
    struct other last = {.ctx = made(8, in_use)};
    start(&last, waits_for_one);
    usleep(300000);
    CHECK(io_destroy(last.ctx), 0);
    CHECK(ended(&last), -EINVAL);
    CHECK(io_destroy(last.ctx), -EINVAL);
    close(fd), close(direct);
}

/* What a thread submitted before it ended is carried out like all else. */
static struct iocb left_behind[4];
static void *leaver(void *argument)
{
    struct iocb *list[4];
    (void)argument;
    for (int i = 0; i < 4; i++)
        list[i] = &left_behind[i];
    return (void *)(long)io_submit(shared, 4, list);
}

static void leaving(int in_use)
{
    enum { ROUNDS_LEFT = 50 };
    for (int round = 0; round < ROUNDS_LEFT; round++) {
        shared = made(8, in_use);
        int fd = filled("leaving", O_RDWR, 1 << 20), ends[2];
        CHECK(pipe(ends), 0);
        /* None of it is in the page cache: the read has to wait for the disk. */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        memset(buffer, 99, 1 << 20);
        left_behind[0] = iocb_of(PREAD, fd, buffer, 1 << 19, 0);
        left_behind[1] = iocb_of(PREAD, fd, buffer + (1 << 19), 1 << 19, 1 << 19);
        left_behind[2] = iocb_of(FSYNC, fd, NULL, 0, 0);
        left_behind[3] = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
        pthread_t thread;
        void *code;
        pthread_create(&thread, NULL, leaver, NULL);
        pthread_join(thread, &code);
        CHECK(code, 4);
        struct io_event events[4];
        struct timespec soon = {0, 1000000}, patient = {10, 0};
        int early = io_getevents(shared, 4, 4, events, &soon);
        CHECK(write(ends[1], "x", 1), 1);
        CHECK(early + io_getevents(shared, 4 - early, 4, events + early, &patient), 4);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 4; k++)
                if (events[k].obj == (uintptr_t)&left_behind[i])
                    CHECK(i < 3 ? events[k].res : events[k].res & POLLIN, i < 2 ? 1 << 19 : i == 2 ? 0 : POLLIN);
        int wrong = 0;
        for (int i = 0; i < 1 << 20; i++)
            wrong += buffer[i] != (char)(i / 512);
        CHECK(wrong, 0);
        CHECK(io_destroy(shared), 0);
        close(fd), close(ends[0]), close(ends[1]);
    }
}

/* In a process whose first thread has ended. */
static int descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void *stays(void *argument)
{
    long fd = (long)argument, before = 0;
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    while (state != 'Z') {
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%*d %*s %c", &state) != 1)
            _exit(3);
        fclose(file);
    }
    for (int round = 0; round < 8; round++) {
        /* On pages that nobody has seen. */
        char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct iocb *iocb = (struct iocb *)pages;
        struct io_event *event = (struct io_event *)(pages + 4096);
        *iocb = iocb_of(PREAD, fd, buffer, 512, 0);
        CHECK(submit_one(shared, iocb), 1);
        CHECK(io_getevents(shared, 1, 1, event, NULL), 1);
        CHECK(event->res, 512);
        munmap(pages, 8192);
        CHECK(io_destroy(shared), 0);
        if (round == 1)
            before = descriptors();
        shared = made(8, 1);
    }
    CHECK(io_destroy(shared), 0);
    shared = made(8, 1);
    CHECK(descriptors() - before, 0);
    fflush(stdout);
    _exit(failed);
}

static void led_by_nobody(int in_use)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        long fd = filled("led_by_nobody", O_RDONLY | O_DIRECT, 4096);
        shared = made(8, in_use);
        pthread_create(&thread, NULL, stays, (void *)fd);
        pthread_exit(NULL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, 1);
    CHECK(status, 0);
}

/*
 * A context that goes the kernel's way for good while others wait: what is in flight comes, also once nothing is left of the
 * other way, and each event once; whoever waits when it is destroyed is told.
 */
enum { SETTLED = 300, BATCH = 8 };
static struct iocb settling[SETTLED + 1];
static unsigned char settled_seen[SETTLED + 1];
static volatile long settled_count, settled_all, settled_takers;

static void *takes(void *argument)
{
    struct io_event events[BATCH];
    while (settled_count < settled_all) {
        /* Without a limit where nobody else takes events: whoever is not woken waits for ever. */
        struct timespec tenth = {0, 100000000};
        int count = io_getevents(shared, argument ? 2 : 1, BATCH, events, settled_takers == 1 ? NULL : &tenth);
        if (count < 0)
            CHECK(count, 0);
        for (int i = 0; i < count; i++)
            __atomic_fetch_add(&settled_seen[(struct iocb *)events[i].obj - settling], 1, __ATOMIC_RELAXED);
        if (count > 0)
            __atomic_fetch_add(&settled_count, count, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void settled(int in_use)
{
    int ends[2], signal = eventfd(0, 0), fd = filled("settled", O_RDONLY, 4096);
    for (int round = 0; round < 3; round++) {
        pthread_t threads[2];
        shared = made(64, in_use);
        CHECK(pipe(ends), 0);
        memset(settled_seen, 0, sizeof settled_seen);
        settled_count = 0, settled_all = SETTLED + 1;
        settled_takers = 1 + (round == 1);
        for (long i = 0; i < settled_takers; i++)
            pthread_create(&threads[i], NULL, takes, (void *)i);
        /* This stays in flight for some time; with an eventfd, all that follow go the kernel's way. */
        settling[SETTLED] = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
        CHECK(submit_one(shared, &settling[SETTLED]), 1);
        for (int i = 0; i < SETTLED; i++) {
            settling[i] = iocb_of(PREAD, fd, buffer, 512, 0);
            if (i == 0)
                settling[i].flags = RESFD, settling[i].resfd = signal;
            int code;
            while ((code = submit_one(shared, &settling[i])) == -EAGAIN)
                usleep(100);
            if (code != 1)
                CHECK(code, 1);
            if (i == SETTLED / 3 * round)
                CHECK(write(ends[1], "x", 1), 1);
            if (i % 100 == 99)
                usleep(2000);
        }
        for (int i = 0; i < settled_takers; i++)
            pthread_join(threads[i], NULL);
        int wrong = 0;
        for (int i = 0; i <= SETTLED; i++)
            wrong += settled_seen[i] != 1;
        CHECK(wrong, 0);
        CHECK(outcome(shared, iocb_of(PREAD, fd, buffer, 512, 0)), 512);
        CHECK(outcome(shared, iocb_of(PREAD, fd, (void *)16, 512, 0)), -EFAULT);
        CHECK(outcome(shared, iocb_of(PREAD, -1, buffer, 512, 0)), -EBADF - 100000);
        struct other last = {.ctx = shared};
        start(&last, waits_for_one);
        CHECK(io_destroy(shared), 0);
        CHECK(ended(&last), -EINVAL);
        close(ends[0]), close(ends[1]);
    }
    close(fd), close(signal);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"threads", threads},       {"misled", misled},     {"waiting", waiting},
        {"destroying", destroying}, {"leaving", leaving},   {"beside", beside},
        {"led_by_nobody", led_by_nobody}, {"settled", settled},
        {NULL, NULL},
    };
    return run_cases(cases, count, arguments);
}
