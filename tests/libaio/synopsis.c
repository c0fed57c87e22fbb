/* As the synopsis of nvlane_aio(3) has it, in C and in C++: reads its own source through io_setup2 and through its rings. */
#include <libaio.h>
#include <nvlane_aio.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NR 4
#define BYTES 64

static struct iocb iocbs[NR];
static char buffers[NR][BYTES];

static void wanted(const char *what, long got, long wanted)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s: %ld, wanted %ld\n", what, got, wanted);
    exit(1);
}

int main(int count, char **arguments)
{
    int fd = count == 2 ? open(arguments[1], O_RDONLY) : -1;
    io_context_t ctx = NULL;
    struct io_event events[NR];
    struct aio_sq_ring *sq = (struct aio_sq_ring *)calloc(1, sizeof *sq + NR * sizeof(uint32_t));
    struct aio_cq_ring *cq = (struct aio_cq_ring *)calloc(1, sizeof *cq + NR * sizeof(struct io_event));

    for (int i = 0; i < NR; i++)
        io_prep_pread(&iocbs[i], fd, buffers[i], BYTES, i * BYTES);
    wanted("io_setup2", io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_FIXEDFILES, iocbs, NULL, NULL, &ctx), 0);
    for (uintptr_t i = 0; i < NR; i++) {
        struct iocb *index = (struct iocb *)i;
        wanted("io_submit", io_submit(ctx, 1, &index), 1);
    }
    wanted("io_getevents", io_getevents(ctx, NR, NR, events, NULL), NR);
    wanted("what is read", memcmp(buffers[0], "/* As the synopsis", 18), 0);
    wanted("io_destroy", io_destroy(ctx), 0);

    ctx = NULL;
    memset(buffers, 0, sizeof buffers);
    sq->nr_events = cq->nr_events = NR, sq->sq_thread_cpu = AIO_SQ_THREAD_ANY_CPU;
    wanted("io_setup2 with rings", io_setup2(NR, IOCTX_FLAG_USERIOCB | IOCTX_FLAG_SCQRING, iocbs, sq, cq, &ctx), 0);
    sq->array[0] = 0, sq->tail = 1;
    wanted("io_ring_enter", io_ring_enter(ctx, 1, 1, IORING_FLAG_SUBMIT | IORING_FLAG_GETEVENTS), 1);
    wanted("bytes of its event", (long)((struct io_event *)(cq + 1))->res, BYTES);
    wanted("what is read", memcmp(buffers[0], "/* As the synopsis", 18), 0);
    wanted("io_destroy", io_destroy(ctx), 0);
    return 0;
}
