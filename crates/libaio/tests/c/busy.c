/* Reads until it is killed. */
#include "aio.h"

static char buffer[4096] __attribute__((aligned(4096)));

int main(int count, char **arguments)
{
    directory = arguments[count - 1];
    /* Or until the test is gone: its children go to somebody else then. */
    pid_t parent = getppid();
    context ctx = NULL;
    int fd = filled("busy", O_RDONLY | O_DIRECT, 4096);
    if (io_setup(8, &ctx))
        return 1;
    for (;;) {
        if (outcome(ctx, iocb_of(PREAD, fd, buffer, 4096, 0)) != 4096)
            return 1;
        if (getppid() != parent)
            return 0;
    }
}
