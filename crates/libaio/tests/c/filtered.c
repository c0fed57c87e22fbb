/* A filter of system calls that comes while a poll is in flight, as sandboxes have it: nobody may cancel that any more. */
#include "aio.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>

static void refuse(int call, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    int ends[2];
    CHECK(pipe(ends), 0);
    context ctx = made(8, 1);
    struct iocb iocb = iocb_of(POLL, ends[0], (void *)POLLIN, 0, 0);
    CHECK(submit_one(ctx, &iocb), 1);
    refuse(SYS_io_uring_register, atoi(arguments[1]));
    CHECK(io_destroy(ctx), 0);
    /* And whatever comes after that. */
    ctx = made(8, 1);
    CHECK(submit_one(ctx, &iocb), 1);
    CHECK(write(ends[1], "x", 1), 1);
    struct io_event event = {0};
    CHECK(io_getevents(ctx, 1, 1, &event, NULL), 1);
    CHECK(event.res & POLLIN, POLLIN);
    CHECK(io_destroy(ctx), 0);
    return failed;
}
