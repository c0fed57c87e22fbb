/* What others do while a thread is about to wait for io_uring: it is held where it enters the kernel, until it is let go. */
#include "aio.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

enum { IO_URING_ENTER = 426 };
static char buffer[4096];
static volatile int listener, over;

/* From here on each io_uring_enter of this thread is asked about. */
static int listen_to_self(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IO_URING_ENTER, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static struct io_event came;
static void *waits_for_one(void *ctx)
{
    listener = listen_to_self();
    long code = io_getevents(ctx, 1, 1, &came, NULL);
    over = 1;
    return (void *)code;
}

static struct seccomp_notif asked;
static void hold(void)
{
    memset(&asked, 0, sizeof asked);
    CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked), 0);
}

static void let_go(void)
{
    struct seccomp_notif_resp answer = {.id = asked.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer), 0);
}

static pthread_t held(context ctx)
{
    pthread_t thread;
    listener = -1, over = 0;
    pthread_create(&thread, NULL, waits_for_one, ctx);
    while (listener < 0 && !over)
        usleep(1000);
    hold();
    return thread;
}

/* What it has come to, however often it waits. */
static long finished(pthread_t thread)
{
    let_go();
    while (!over) {
        struct pollfd more = {.fd = listener, .events = POLLIN};
        if (poll(&more, 1, 10) == 1 && more.revents & POLLIN)
            hold(), let_go();
    }
    void *code;
    pthread_join(thread, &code);
    close(listener);
    return (long)code;
}

static void *destroys(void *ctx)
{
    return (void *)(long)io_destroy(ctx);
}

/* A thread that waited in a context takes nothing of another that is at its address by now. */
static void renewed(void)
{
    enum { TRIES = 16 };
    int fd = filled("renewed", O_RDONLY, 4096), ends[2], signal = eventfd(0, 0);
    context ctx = made(8, 0), others[TRIES] = {NULL};
    CHECK(pipe(ends), 0);
    struct iocb poll = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0), native = poll;
    native.flags = RESFD, native.resfd = signal;
    CHECK(submit_one(ctx, &poll), 1);
    CHECK(submit_one(ctx, &native), 1);
    pthread_t waiter = held(ctx), destroyer;
    pthread_create(&destroyer, NULL, destroys, ctx);
    unsigned char there;
    while (mincore(ctx, 4096, &there) == 0)
        usleep(1000);
    int count = 0;
    do
        CHECK(io_setup(8, &others[count]), 0);
    while (others[count] != ctx && ++count < TRIES);
    context other = others[count < TRIES ? count : 0];
    if (other != ctx)
        fprintf(stderr, "the address was not used again\n");
    struct iocb iocb = iocb_of(PREAD, fd, buffer, 512, 0);
    iocb.flags = RESFD, iocb.resfd = signal;
    CHECK(submit_one(other, &iocb), 1);
    CHECK(finished(waiter), -EINVAL);
    struct io_event event;
    struct timespec patient = {5, 0};
    CHECK(io_getevents(other, 1, 1, &event, &patient), 1);
    CHECK(event.res, 512);
    void *code;
    pthread_join(destroyer, &code);
    CHECK(code, 0);
    for (int i = 0; i < TRIES && others[i]; i++)
        CHECK(io_destroy(others[i]), 0);
    close(fd), close(signal), close(ends[0]), close(ends[1]);
}

/* Another thread takes what was to wake it, and leaves the event: it comes all the same. */
static void woken(void)
{
    int fd = filled("woken", O_RDONLY, 4096), ends[2];
    CHECK(pipe(ends), 0);
    CHECK(write(ends[1], "x", 1), 1);
    context ctx = made(8, 0);
    struct iocb cached = iocb_of(PREAD, fd, buffer, 512, 0), ready = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
    pthread_t waiter = held(ctx);
    CHECK(submit_one(ctx, &cached), 1);
    CHECK(submit_one(ctx, &ready), 1);
    struct io_event event;
    /* Not io_getevents, which would take the other. */
    CHECK(io_pgetevents(ctx, 1, 1, &event, NULL, NULL), 1);
    CHECK(event.obj == (uintptr_t)&ready, 1);
    CHECK(finished(waiter), 1);
    CHECK(came.obj == (uintptr_t)&cached, 1);
    CHECK(came.res, 512);
    CHECK(io_destroy(ctx), 0);
    close(fd), close(ends[0]), close(ends[1]);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    /* Who is not woken waits for ever. */
    alarm(60);
    renewed();
    woken();
    return failed;
}
