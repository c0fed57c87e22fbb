/* The kernel's threads that contexts of io_setup2 have: who submits, where and for how long, and who carries out. */
#include "aio.h"
#include "../../include/nvlane_aio.h"
#include <dirent.h>
#include <sched.h>

enum { NR = 16, BYTES = 4096 };

static struct iocb iocbs[NR];
static char *buffers;
static struct iovec vectors[NR][2];

static void prepare(int opcode, int fd)
{
    for (int i = 0; i < NR; i++) {
        char *buffer = buffers + BYTES * i;
        vectors[i][0] = (struct iovec){buffer, BYTES / 2}, vectors[i][1] = (struct iovec){buffer + BYTES / 2, BYTES / 2};
        iocbs[i] = opcode == PREAD ? iocb_of(PREAD, fd, buffer, BYTES, BYTES * i) : iocb_of(PREADV, fd, vectors[i], 2, BYTES * i);
    }
}

/* A thread of this process of that name, and on that processor alone where it is not -1, but for `other`; 0 if there is none. */
static int thread_of(const char *name, int cpu, int other)
{
    DIR *tasks = opendir("/proc/self/task");
    int found = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[300], line[32] = "";
        cpu_set_t cpus;
        int task = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", task);
        FILE *file = task && task != other ? fopen(path, "r") : NULL;
        if (!file)
            continue;
        int is_there = cpu < 0 ||
            (sched_getaffinity(task, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) == 1 && CPU_ISSET(cpu, &cpus));
        if (is_there && fgets(line, sizeof line, file) && !strncmp(line, name, strlen(name)))
            found = task;
        fclose(file);
    }
    closedir(tasks);
    return found;
}

/* Nanoseconds that it has run. */
static long long ran(int task)
{
    char path[64];
    long long time = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", task);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%lld", &time) != 1)
        time = -1;
    if (file)
        fclose(file);
    return time;
}

/* A context whose requests a thread takes on that processor, and that thread. */
struct taken {
    context ctx;
    struct aio_sq_ring *sq;
    struct aio_cq_ring *cq;
    int task;
};

static int set_up(struct taken *taken, int cpu, unsigned more)
{
    taken->sq = calloc(1, sizeof *taken->sq + NR * sizeof(uint32_t));
    taken->cq = calloc(1, sizeof *taken->cq + NR * sizeof(struct io_event));
    taken->sq->nr_events = taken->cq->nr_events = NR, taken->sq->sq_thread_cpu = cpu, taken->ctx = NULL;
    unsigned flags = IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING | IOCTX_FLAG_SQTHREAD | more;
    return io_setup2(NR, flags, iocbs, taken->sq, taken->cq, &taken->ctx);
}

static void tear_down(struct taken *taken)
{
    CHECK(io_destroy(taken->ctx), 0);
    free(taken->sq), free(taken->cq);
}

static void read_one(struct taken *taken, int index)
{
    unsigned before = taken->cq->tail;
    taken->sq->array[taken->sq->tail % NR] = index;
    __atomic_store_n(&taken->sq->tail, taken->sq->tail + 1, __ATOMIC_RELEASE);
    CHECK(io_ring_enter(taken->ctx, 1, 1, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS), 1);
    CHECK(taken->cq->tail - before, 1);
}

/* The thread that takes submissions is where the program wants it, sleeps after a second, and is woken. One that is to
   stay awake works on when the other, which was told to submit after it, sleeps. */
static void submitters(int fd)
{
    cpu_set_t cpus;
    int cpu = CPU_SETSIZE - 1;
    CHECK(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    while (cpu && !CPU_ISSET(cpu, &cpus))
        cpu--;
    prepare(PREAD, fd);
    struct taken awake, asleep;
    int code = set_up(&awake, cpu, IOCTX_FLAG_SQPOLL);
    if (code) {
        printf("not checked: threads that submit: %s\n", strerror(-code));
        return;
    }
    read_one(&awake, 0);
    CHECK((awake.task = thread_of("iou-sqp-", cpu, 0)) != 0, 1);
    CHECK(set_up(&asleep, cpu, 0), 0);
    read_one(&asleep, 0);
    CHECK((asleep.task = thread_of("iou-sqp-", cpu, awake.task)) != 0, 1);
    double until = seconds() + 60;
    long long before, after = ran(asleep.task);
    /* On a busy machine it is late with everything. */
    do {
        before = after;
        usleep(1500000);
        after = ran(asleep.task);
    } while (after != before && seconds() < until);
    CHECK(before >= 0 && after == before, 1);
    before = ran(awake.task), until = seconds() + 60;
    while ((after = ran(awake.task)) == before && seconds() < until)
        usleep(10000);
    CHECK(before >= 0 && after > before, 1);
    read_one(&asleep, 1);
    read_one(&awake, 1);
    tear_down(&asleep), tear_down(&awake);
    if (!CPU_ISSET(CPU_SETSIZE - 1, &cpus)) {
        CHECK(set_up(&awake, CPU_SETSIZE - 1, 0), -EINVAL);
        free(awake.sq), free(awake.cq);
    }
}

/* In a process of its own, which has no worker yet. */
static void workers(int opcode, int fd, unsigned more)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        const unsigned sets[] = {0, IOCTX_FLAG_SQWQ};
        for (int way = 0; way < 2; way++) {
            context ctx = NULL;
            uintptr_t index = way;
            struct io_event event = {0};
            prepare(opcode, fd);
            CHECK(io_setup2(NR, IOCTX_FLAG_USERIOCB | sets[way] | more, iocbs, NULL, NULL, &ctx), 0);
            CHECK(io_submit(ctx, 1, (struct iocb **)&index), 1);
            CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
            CHECK(event.res, BYTES);
            int task = thread_of("iou-wrk-", -1, 0);
            if (!way && task) {
                printf("not checked: workers, which this file's reads have in any case\n");
                break;
            }
            CHECK(task != 0, way);
            CHECK(io_destroy(ctx), 0);
        }
        fflush(stdout);
        _exit(failed);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(status, 0);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    buffers = aligned_alloc(BYTES, NR * BYTES);
    memset(buffers, 1, NR * BYTES);
    int cached = filled("workers", O_RDWR, NR * BYTES), direct = file_of("workers", O_RDWR | O_DIRECT, 0);
    workers(PREAD, cached, 0);
    workers(PREADV, cached, 0);
    /* Where nothing is to be found out first. */
    workers(PREAD, cached, IOCTX_FLAG_FIXEDFILES);
    submitters(direct);
    return failed;
}
