/* Writes that are carried out within io_submit: what the kernel is told of those that are to be durable. A filter of system calls
 * ends pwritev2 with an error of its own for each of its flags, which is then what their events say. */
#include "aio.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

enum { BYTES = 4096, HIPRI = 1, DSYNC = 2, SYNC = 4 };

static char *buffer;

static void tell_flags(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwritev2, 0, 5),
        /* The lower half, as processors here have it: flags are the last argument. */
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, DSYNC, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYNC, 1, 2),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* Beyond the file's end and within it, of one buffer, of one in a list, and of two. */
static void writes(int fd)
{
    static const struct {
        unsigned flags;
        int wanted;
    } kinds[] = {{0, BYTES}, {HIPRI, BYTES}, {DSYNC, -EIO}, {SYNC, -ENOSPC}, {HIPRI | DSYNC, -EIO}, {HIPRI | SYNC, -ENOSPC}};
    struct iovec vectors[] = {{buffer, BYTES / 2}, {buffer + BYTES / 2, BYTES / 2}}, vector = {buffer, BYTES};
    context ctx = made(8, 0);
    for (int turn = 0; turn < 2; turn++)
        for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            struct iocb iocbs[] = {
                iocb_of(PWRITE, fd, buffer, BYTES, BYTES * i),
                iocb_of(PWRITEV, fd, &vector, 1, BYTES * i),
                iocb_of(PWRITEV, fd, vectors, 2, BYTES * i),
            };
            for (int k = 0; k < 3; k++) {
                iocbs[k].rw_flags = kinds[i].flags;
                CHECK(outcome(ctx, iocbs[k]), kinds[i].wanted);
            }
        }
    CHECK(io_destroy(ctx), 0);
}

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    buffer = aligned_alloc(BYTES, BYTES);
    memset(buffer, 1, BYTES);
    int cached = file_of("durable", O_RDWR, 0), memory = memfd_create("durable", MFD_CLOEXEC);
    tell_flags();
    writes(cached);
    writes(memory);
    return failed;
}
