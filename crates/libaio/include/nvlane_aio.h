/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Polled asynchronous I/O with iocbs that the library knows beforehand, in nvlane's libaio.so.1.
 * Include <libaio.h> before this, or define struct iocb, struct io_event and io_context_t yourself.
 * See nvlane_aio(3).
 */
#ifndef NVLANE_AIO_H
#define NVLANE_AIO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of io_setup2. */
#define IOCTX_FLAG_USERIOCB (1u << 0)   /* iocbs are named by their index in `iocbs` */
#define IOCTX_FLAG_IOPOLL (1u << 1)     /* completions are polled for: O_DIRECT, IOCB_FLAG_HIPRI */
#define IOCTX_FLAG_FIXEDBUFS (1u << 2)  /* aio_buf and aio_nbytes are pinned at set-up */
#define IOCTX_FLAG_SCQRING (1u << 3)    /* use sq_ring and cq_ring, by io_ring_enter */
#define IOCTX_FLAG_SQTHREAD (1u << 4)   /* a kernel thread takes submissions */
#define IOCTX_FLAG_SQWQ (1u << 5)       /* worker threads carry out the I/O */
#define IOCTX_FLAG_SQPOLL (1u << 6)     /* with SQTHREAD: the thread sleeps after a day */
#define IOCTX_FLAG_FIXEDFILES (1u << 16) /* aio_fildes is pinned at set-up (not in the proposal) */

/* aio_flags: required in contexts with IOCTX_FLAG_IOPOLL, refused elsewhere. */
#define IOCB_FLAG_HIPRI (1u << 2)

/* Flags of io_ring_enter. */
#define IORING_FLAG_SUBMIT (1u << 0)
#define IORING_FLAG_GETEVENTS (1u << 1)

/* sq_thread_cpu: let the kernel choose. */
#define AIO_SQ_THREAD_ANY_CPU 0xffffu

/* The program moves the tail, the library the head; both count up without bound. */
struct aio_sq_ring {
    union {
        struct {
            uint32_t head;
            uint32_t tail;
            uint32_t nr_events; /* places in `array`, a power of two; set by the program before io_setup2 */
            uint16_t sq_thread_cpu;
            uint16_t kflags;
            uint64_t iocbs;
        };
        uint32_t pad[16];
    };
    uint32_t array[]; /* indices of iocbs */
};

/* The library moves the tail, the program the head; events lie at byte 32. */
struct aio_cq_ring {
    union {
        struct {
            uint32_t head;
            uint32_t tail;
            uint32_t nr_events; /* places in `events`, a power of two; set by the program before io_setup2 */
        };
        uint32_t pad[8];
    };
    /* struct io_event events[nr_events]; */
};

struct iocb;

/* Makes a context for `nr_events` requests; 0, or -errno. With no flag it is io_setup. */
int io_setup2(uint32_t nr_events, uint32_t flags, struct iocb *iocbs, struct aio_sq_ring *sq_ring,
              struct aio_cq_ring *cq_ring, void *ctxp);

/* Submits up to `to_submit` from the ring, waits for `min_complete` events in the other; the number
 * submitted (without IORING_FLAG_SUBMIT: of events), or -errno. */
int io_ring_enter(void *ctx, uint32_t to_submit, uint32_t min_complete, uint32_t flags);

#ifdef __cplusplus
}
#endif
#endif
