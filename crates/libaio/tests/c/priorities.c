/* I/O priorities of requests: which the kernel takes, from whom, and of which kinds of requests. */
#include "aio.h"

enum { NONE, REAL_TIME, BEST_EFFORT, IDLE };
enum { WRONG_CLASS = 7 };
#define PRIORITY(class, level) ((int16_t)((class) << 13 | (level)))

static char buffer[1 << 16] __attribute__((aligned(4096)));

static struct iocb with(struct iocb iocb, int16_t priority)
{
    iocb.flags = IOPRIO, iocb.reqprio = priority;
    return iocb;
}

/* A file by the page cache, and past it, by numbers that were nobody's before. */
static void opened(int fds[2])
{
    static int next = 20;
    int cached = filled("priorities", O_RDWR, sizeof buffer), direct = file_of("priorities", O_RDWR | O_DIRECT, 0);
    fds[0] = fcntl(cached, F_DUPFD, next), fds[1] = fcntl(direct, F_DUPFD, next + 1);
    close(cached), close(direct);
    next += 2;
}

static void closed(context ctx, int fds[2])
{
    CHECK(io_destroy(ctx), 0);
    close(fds[0]), close(fds[1]);
}

/* Whether this process may have real-time priority, by the kernel's own word. */
static int may_be_real_time(void)
{
    int before = syscall(SYS_ioprio_get, 1, 0);
    int may = syscall(SYS_ioprio_set, 1, 0, PRIORITY(REAL_TIME, 4)) == 0;
    syscall(SYS_ioprio_set, 1, 0, before);
    return may;
}

/* What is taken, or refused, is so again. */
static void thrice(context ctx, struct iocb iocb, long wanted)
{
    for (int i = 0; i < 3; i++)
        CHECK(outcome(ctx, iocb), wanted);
}

static void classes(int in_use)
{
    context ctx = made(16, in_use);
    int fds[2];
    opened(fds);
    for (int i = 0; i < 2; i++)
        for (int opcode = PREAD; opcode <= PWRITE; opcode++) {
            struct iocb plain = iocb_of(opcode, fds[i], buffer, 4096, 4096);
            for (int level = 0; level < 8; level++) {
                thrice(ctx, with(plain, PRIORITY(BEST_EFFORT, level)), 4096);
                thrice(ctx, with(plain, PRIORITY(IDLE, level)), 4096);
                thrice(ctx, with(plain, PRIORITY(NONE, level)), level ? -EINVAL - 100000 : 4096);
                for (int class = IDLE + 1; class <= WRONG_CLASS; class++)
                    thrice(ctx, with(plain, PRIORITY(class, level)), -EINVAL - 100000);
            }
            /* Without the flag the number says nothing. */
            plain.reqprio = PRIORITY(WRONG_CLASS, 7);
            thrice(ctx, plain, 4096);
        }
    closed(ctx, fds);
}

/* The same in lists: all alike, each another one, and one that is refused among those that are not. */
static void lists(int in_use)
{
    context ctx = made(16, in_use);
    int fds[2];
    struct iocb iocbs[8], *list[8];
    struct io_event events[8];
    opened(fds);
    for (int i = 0; i < 2; i++)
        for (int opcode = PREAD; opcode <= PWRITE; opcode++) {
            for (int at = 0; at < 8; at++)
                iocbs[at] = iocb_of(opcode, fds[i], buffer + 4096 * at, 4096, 4096 * at), list[at] = &iocbs[at];
            for (int round = 0; round < 4; round++) {
                for (int at = 0; at < 8; at++)
                    iocbs[at] = with(iocbs[at], PRIORITY(BEST_EFFORT, round < 3 ? 3 : at));
                CHECK(io_submit(ctx, 8, list), 8);
                CHECK(io_getevents(ctx, 8, 8, events, NULL), 8);
                long sum = 0;
                for (int at = 0; at < 8; at++)
                    sum += events[at].res;
                CHECK(sum, 8 * 4096);
            }
            for (int round = 0; round < 2; round++) {
                iocbs[5] = with(iocbs[5], PRIORITY(WRONG_CLASS, 0));
                CHECK(io_submit(ctx, 8, list), 5);
                CHECK(io_submit(ctx, 3, list + 5), -EINVAL);
                CHECK(io_getevents(ctx, 5, 8, events, NULL), 5);
                CHECK(io_submit(ctx, 2, list + 6), 2);
                CHECK(io_getevents(ctx, 2, 8, events, NULL), 2);
            }
        }
    closed(ctx, fds);
}

static void real_time(context ctx, int fds[2], int wanted)
{
    struct iocb iocbs[4], *list[4];
    struct io_event events[4];
    for (int i = 0; i < 2; i++)
        for (int opcode = PREAD; opcode <= PWRITE; opcode++)
            for (int round = 0; round < 3; round++) {
                struct iocb one = with(iocb_of(opcode, fds[i], buffer, 4096, 0), PRIORITY(REAL_TIME, 4));
                CHECK(outcome(ctx, one), wanted);
                for (int at = 0; at < 4; at++)
                    iocbs[at] = one, list[at] = &iocbs[at];
                if (wanted > 0) {
                    CHECK(io_submit(ctx, 4, list), 4);
                    CHECK(io_getevents(ctx, 4, 4, events, NULL), 4);
                } else {
                    CHECK(io_submit(ctx, 4, list), wanted + 100000);
                    iocbs[0] = with(one, PRIORITY(BEST_EFFORT, 4));
                    CHECK(io_submit(ctx, 4, list), 1);
                    CHECK(io_getevents(ctx, 1, 4, events, NULL), 1);
                }
            }
}

/* Real time is for root, or whoever has CAP_SYS_NICE: at the moment of the request, whatever was taken before. */
static void rights(int in_use)
{
    context ctx = made(16, in_use);
    int fds[2];
    opened(fds);
    int may = may_be_real_time();
    real_time(ctx, fds, may ? 4096 : -EPERM - 100000);
    /* Who is not root has nobody else to become. */
    int other = geteuid() == 0 && seteuid(65534) == 0;
    CHECK(other && may_be_real_time(), 0);
    real_time(ctx, fds, may && !other ? 4096 : -EPERM - 100000);
    struct iocb plain = iocb_of(PREAD, fds[1], buffer, 4096, 0);
    CHECK(outcome(ctx, with(plain, PRIORITY(BEST_EFFORT, 0))), 4096);
    CHECK(outcome(ctx, with(plain, PRIORITY(IDLE, 0))), 4096);
    if (other && seteuid(0))
        exit(2);
    real_time(ctx, fds, may ? 4096 : -EPERM - 100000);
    closed(ctx, fds);
}

/* Requests that move nothing have no priority: theirs is not looked at, and says nothing of the next one's. */
static void unlike(int in_use)
{
    context ctx = made(16, in_use);
    int fds[2], ends[2];
    struct io_event events[4];
    opened(fds);
    CHECK(pipe(ends), 0);
    CHECK(write(ends[1], "x", 1), 1);
    for (int i = 0; i < 2; i++)
        for (int class = BEST_EFFORT; class < 8; class += WRONG_CLASS - BEST_EFFORT) {
            int16_t priority = PRIORITY(class, 7);
            long wanted = class == WRONG_CLASS ? -EINVAL - 100000 : 4096;
            struct iocb transfers[] = {
                iocb_of(PREAD, fds[i], buffer, 4096, 0),
                iocb_of(PWRITE, fds[i], buffer, 4096, 0),
            };
            struct iocb others[] = {
                iocb_of(FSYNC, fds[i], NULL, 0, 0),
                iocb_of(FDSYNC, fds[i], NULL, 0, 0),
                iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0),
            };
            for (int other = 0; other < 3; other++)
                for (int transfer = 0; transfer < 2; transfer++) {
                    CHECK(outcome(ctx, with(others[other], priority)), other == 2 ? POLLIN : 0);
                    CHECK(outcome(ctx, with(transfers[transfer], priority)), wanted);
                    struct iocb first = with(others[other], priority), second = with(transfers[transfer], priority);
                    struct iocb *list[] = {&first, &second};
                    int taken = wanted > 0 ? 2 : 1;
                    CHECK(io_submit(ctx, 2, list), taken);
                    CHECK(io_getevents(ctx, taken, 4, events, NULL), taken);
                }
        }
    close(ends[0]), close(ends[1]);
    closed(ctx, fds);
}

/* Past the end of a file. */
static void extending(int in_use)
{
    context ctx = made(16, in_use);
    int fds[2];
    opened(fds);
    for (int i = 0; i < 2; i++) {
        CHECK(ftruncate(fds[i], 0), 0);
        for (int at = 0; at < 8; at++) {
            struct iocb write = iocb_of(PWRITE, fds[i], buffer, 4096, 4096 * at);
            CHECK(outcome(ctx, with(write, PRIORITY(WRONG_CLASS, 3))), -EINVAL - 100000);
            CHECK(lseek(fds[i], 0, SEEK_END), 4096 * at);
            CHECK(outcome(ctx, with(write, PRIORITY(BEST_EFFORT, 3))), 4096);
            CHECK(lseek(fds[i], 0, SEEK_END), 4096 * at + 4096);
        }
    }
    closed(ctx, fds);
}

int main(int count, char **arguments)
{
    static const struct test_case cases[] = {
        {"classes", classes}, {"lists", lists}, {"rights", rights}, {"unlike", unlike}, {"extending", extending}, {0}};
    return run_cases(cases, count, arguments);
}
