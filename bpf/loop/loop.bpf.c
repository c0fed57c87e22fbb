/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * loop.bpf.c: the loop around a program that runs in the kernel.
 *
 *   completion queue --> nvlane_loop_step, for each completion (events.h):
 *	FETCH	a request has come	begin, NVLANE_ROUTE, check --> parts | a pause | commit
 *		many have come	the same for each, as far as there is room; others are noted
 *	PART	a part has ended	the last one: NVLANE_DONE, check --> the same
 *	PAUSE	a delay is over		what was decided before it
 *	BLANK	a read was filled with zeroes	commit
 *	RETRY	a part has waited	it is sent again
 *	CALL	user space is wanted	the loop stops
 *	COMMITTED the driver has taken many results
 *   while requests are held back, those that come are noted, and user space is told when no other is left
 *   what was deferred --> user space: NVLANE_DEFERRED --> TAKEN: check --> the same
 *   submission queue <-- at most 32 entries per request, and one that commits all results; io_uring carries them out
 *
 * The program is another object, and calls nothing of this one's. crates/ublk-bpf links the two when the program is loaded; it has
 * this object in it. Functions are verified one by one. Offsets into the ring come from user space as constants, so
 * that nothing depends on the kernel's own structures.
 *
 * What a program wants is checked by check.h, and becomes entries for the ring by entries.h, as events.h has it. What is
 * shared with user space is in shared.h.
 */
#include "../nvlane_bpf.h"
#include "shared.h"

const volatile struct nvlane_loop_config nvlane_config SEC(".rodata.nvlane") = { 0 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NVLANE_DEPTH_MAX);	/* user space makes it the depth of all queues */
	__type(key, __u32);
	__type(value, struct nvlane_flight);
} nvlane_flights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);		/* as many as there are queues */
	__type(key, __u32);
	__type(value, struct nvlane_queue_state);
} nvlane_queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);		/* as many as there are queues */
	__type(key, __u32);
	__type(value, struct nvlane_deferrals);
} nvlane_deferrals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);		/* as many as there are queues */
	__type(key, __u32);
	__type(value, struct nvlane_held);
} nvlane_held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nvlane_mistake_log);
} nvlane_mistakes SEC(".maps");

/* ---- The kernel's side ------------------------------------------------------------------------ */

#define NVLANE_GLOBAL __attribute__((noinline))
#define NVLANE_LOOP _Pragma("clang loop unroll(disable)")

/* For i from `first` to less than `end`, a constant: the verifier looks at one round instead of all. */
#define NVLANE_EACH(i, first, end) \
	for (struct bpf_iter_num turn_##i __attribute__((cleanup(bpf_iter_num_destroy))), \
	     *begun_##i __attribute__((unused)) = (bpf_iter_num_new(&turn_##i, first, end), (void *)0); \
	     ({ int *at = bpf_iter_num_next(&turn_##i); at && (i = *at, i < (end)); }); )

#ifndef __VMLINUX_H__
struct iou_ctx { int opaque; };
struct iou_loop_params { __u32 cq_wait_idx; };
struct io_uring_bpf_ops {
	int (*loop_step)(struct iou_ctx *, struct iou_loop_params *);
	__u32 ring_fd;
	void *priv;
};
enum { IOU_LOOP_CONTINUE = 0, IOU_LOOP_STOP = 1 };
#endif
extern int bpf_io_uring_submit_sqes(struct iou_ctx *, __u32) __attribute__((section(".ksyms")));
extern __u8 *bpf_io_uring_get_region(struct iou_ctx *, __u32, const __u64) __attribute__((section(".ksyms")));
struct bpf_iter_num { __u64 opaque[1]; } __attribute__((aligned(8)));
extern int bpf_iter_num_new(struct bpf_iter_num *, int, int) __attribute__((section(".ksyms")));
extern int *bpf_iter_num_next(struct bpf_iter_num *) __attribute__((section(".ksyms")));
extern void bpf_iter_num_destroy(struct bpf_iter_num *) __attribute__((section(".ksyms")));
static long (*const nvlane_read_user)(void *, __u32, const void *) = (void *)112; /* bpf_probe_read_user */

struct nvlane_sqe { __u64 word[8]; };
struct nvlane_sq { struct nvlane_sqe entry[NVLANE_SQ_ENTRIES]; };
struct nvlane_cqe { __u64 about; __s32 result; __u32 flags; };
struct nvlane_time { __u64 seconds, ns; };
struct nvlane_result { __u16 tag, buffer; __s32 result; };	/* struct ublk_elem_header */
struct nvlane_buffer { __u64 address; __u32 bytes; __u16 id, tail; };	/* struct io_uring_buf */

/* The ring's memory region. */
struct nvlane_memory {
	struct nvlane_time time[NVLANE_DEPTH_MAX];
	struct nvlane_result result[NVLANE_DEPTH_MAX];
	__u16 tag[NVLANE_BUFFERS][NVLANE_BATCH_MAX];
	struct nvlane_buffer buffer[NVLANE_BUFFERS];	/* begins a page */
	__u32 queue;					/* whose ring this is */
};
#define NVLANE_PLACE(member) __builtin_offsetof(struct nvlane_memory, member)
_Static_assert(NVLANE_PLACE(buffer) % 4096 == 0, "buffers begin a page");
_Static_assert(NVLANE_PLACE(queue) == NVLANE_PLACE(buffer) + NVLANE_BUFFERS * 16, "as in crates/ublk-bpf/src/abi.rs");
struct nvlane_descriptor { __u32 op_flags, sectors; __u64 start, addr; };

/* What a completion is about: kind 63:56, backend 47:40, part 39:32, tag 31:0. */
enum {
	NVLANE_FETCH = 0, NVLANE_PART = 1, NVLANE_PAUSE = 2, NVLANE_BLANK = 3, NVLANE_RETRY = 4, NVLANE_TAKEN = 5,
	NVLANE_CALL = 7,		/* of the descriptor that user space calls by */
	NVLANE_COMMITTED = 8,		/* so many bytes of results are to be taken */
};
#define NVLANE_ABOUT(kind, backend, part, tag) \
	((__u64)(kind) << 56 | (__u64)(backend) << 40 | (__u64)(part) << 32 | (tag))

/* Files of the ring: 0 is the driver's, then the backends, then /dev/zero. */
#define NVLANE_FILE_ZERO (1 + NVLANE_BACKENDS_MAX)

/* Opcodes of io_uring with IOSQE_FIXED_FILE where there is a file; modes of fallocate; errors. */
enum {
	NVLANE_OP_FSYNC = 3 | 1 << 8,
	NVLANE_OP_READ = 4 | 1 << 8,
	NVLANE_OP_WRITE = 5 | 1 << 8,
	NVLANE_OP_TIMEOUT = 11,
	NVLANE_OP_FALLOCATE = 17 | 1 << 8,
	NVLANE_OP_COMMAND = 46 | 1 << 8,
	NVLANE_OP_SELECT = 46 | 1 << 8 | 1 << 13,	/* with IOSQE_BUFFER_SELECT */
};
/* Of a completion: it has a buffer, there will be more. */
enum { NVLANE_HAS_BUFFER = 1, NVLANE_MORE = 2 };
enum { NVLANE_MAKE_HOLE = 3, NVLANE_ZERO_RANGE = 0x11 };
enum {
	NVLANE_EPERM = 1, NVLANE_EINTR = 4, NVLANE_EIO = 5, NVLANE_EBADF = 9, NVLANE_EAGAIN = 11, NVLANE_ENOMEM = 12,
	NVLANE_EFAULT = 14, NVLANE_ENODEV = 19, NVLANE_EINVAL = 22, NVLANE_EFBIG = 27, NVLANE_ENOSPC = 28,
	NVLANE_EROFS = 30, NVLANE_ENODATA = 61, NVLANE_EOVERFLOW = 75, NVLANE_EOPNOTSUPP = 95, NVLANE_ENOBUFS = 105, NVLANE_EDQUOT = 122,
};
enum { NVLANE_INVALID_OPCODE = 0x001, NVLANE_INTERRUPTED = 0x021, NVLANE_OUT_OF_RANGE = 0x080 };
enum { NVLANE_THEN_NOTHING, NVLANE_THEN_PARTS, NVLANE_THEN_END, NVLANE_THEN_DEFER };
#define NVLANE_TRIES_MAX 16
#define NVLANE_IN_VAIN_MAX 1000

/* The program's. */
extern int nvlane_kernel_route(struct nvlane_request *r NVLANE_NONNULL);

/* Where the program has none of its own, this one is never called (nvlane_config.has_done). */
__attribute__((noinline, weak)) int nvlane_kernel_done(struct nvlane_request *r NVLANE_NONNULL)
{
	return r->op >> 8;
}

#include "check.h"
#include "entries.h"
#include "events.h"

/* ---- Running it ------------------------------------------------------------------------------- */

SEC("struct_ops.s/nvlane_loop_step")
int nvlane_loop_step(__u64 *arguments)
{
	struct iou_ctx *ring = (void *)arguments[0];
	struct iou_loop_params *loop = (void *)arguments[1];
	struct nvlane_memory *memory = (void *)bpf_io_uring_get_region(ring, 0, sizeof(*memory));
	__u8 *cq = bpf_io_uring_get_region(ring, 1, nvlane_config.cq_bytes);
	struct nvlane_sq *sq = (void *)bpf_io_uring_get_region(ring, 2, sizeof(*sq));
	__u32 key, head, tail, i, ended, filled;
	struct nvlane_queue_state *q;
	struct nvlane_deferrals *deferrals;
	struct nvlane_held *held;

	/* Nobody knows whose ring it is; that no step was done, user space sees. */
	if (!memory)
		return IOU_LOOP_STOP;
	key = memory->queue;
	q = bpf_map_lookup_elem(&nvlane_queues, &key);
	deferrals = bpf_map_lookup_elem(&nvlane_deferrals, &key);
	held = bpf_map_lookup_elem(&nvlane_held, &key);
	if (!q || !deferrals || !held)
		return IOU_LOOP_STOP;
	if (!cq || !sq) {
		q->error = NVLANE_EFAULT;
		return IOU_LOOP_STOP;
	}
	head = *(volatile __u32 *)(cq + nvlane_config.cq_head);
	tail = *(volatile __u32 *)(cq + nvlane_config.cq_tail);
	q->steps++;
	NVLANE_LOOP for (i = 0; i < NVLANE_TAKEN_MAX; i++) {
		if (i >= deferrals->taken)
			break;
		nvlane_kernel_event(sq, memory, q, NVLANE_ABOUT(NVLANE_TAKEN, 0, 0, deferrals->answer[i].tag),
				    deferrals->answer[i].returned);
	}
	deferrals->taken = 0;
	NVLANE_LOOP for (i = 0; i < NVLANE_TURN_MAX; i++) {
		struct nvlane_cqe *completion;
		__u32 kind;

		if (head == tail || q->filled > NVLANE_FULL)
			break;
		completion = (void *)(cq + nvlane_config.cq_entries + (__u64)(head & nvlane_config.cq_mask) * sizeof(*completion));
		head++;
		q->completions++;
		kind = completion->about >> 56;
		if (kind == NVLANE_PART)
			nvlane_kernel_part(sq, memory, q, completion->about, completion->result);
		else if (kind == NVLANE_FETCH && nvlane_config.batches)
			nvlane_kernel_fetched(sq, memory, q, completion->result, completion->flags);
		else if (kind == NVLANE_FETCH && !completion->result && nvlane_may_begin(held, q))
			nvlane_kernel_come(sq, memory, q, completion->about);
		else
			nvlane_kernel_event(sq, memory, q, completion->about, completion->result);
	}
	*(volatile __u32 *)(cq + nvlane_config.cq_head) = head;
	NVLANE_EACH(i, 0, NVLANE_SQ_ENTRIES) {
		if (held->holding || held->first == held->end || q->filled > NVLANE_FULL)
			break;
		nvlane_kernel_come(sq, memory, q, held->tag[held->first++ & (NVLANE_DEPTH_MAX - 1)]);
	}
	if (nvlane_config.batches)
		nvlane_hand_in(sq, q);
	filled = q->filled;
	if (filled > NVLANE_SQ_ENTRIES) {
		q->error = NVLANE_EIO;
		return IOU_LOOP_STOP;
	}
	if (filled) {
		q->submissions++;
		q->entries += filled;
		q->filled = 0;
		if (bpf_io_uring_submit_sqes(ring, filled) != filled) {
			q->error = NVLANE_EIO;
			return IOU_LOOP_STOP;
		}
	}
	if (nvlane_config.batches) {
		tail = *(volatile __u32 *)(cq + nvlane_config.cq_tail);
		/*
		 * What a commit has become is there when it was submitted. Where nothing else is, it is looked at now: it would
		 * have the loop turn for nothing, or, were it slept past, be seen when something else comes, which may be never.
		 */
		if (q->committing && tail - head == 1) {
			struct nvlane_cqe *completion = (void *)(cq + nvlane_config.cq_entries
				+ (__u64)(head & nvlane_config.cq_mask) * sizeof(*completion));

			if (completion->about >> 56 == NVLANE_COMMITTED) {
				nvlane_committed(q, completion->about, completion->result);
				head++;
				*(volatile __u32 *)(cq + nvlane_config.cq_head) = head;
				q->completions++;
			}
		}
		/* Nobody has a tag any more. */
		if (q->over && !q->busy && !q->committing && held->first == held->end)
			q->ended = nvlane_config.depth;
	}
	/* Where the driver takes tags back, user space sees what becomes of the rest. */
	ended = (q->ended + q->over) << 16 | (q->busy & 0xffff);
	if (ended >> 16 && ended != q->told) {
		q->told = ended;
		return IOU_LOOP_STOP;
	}
	if (q->error || deferrals->given || deferrals->more || held->called || (held->holding && !q->busy))
		return IOU_LOOP_STOP;
	/* What waits is next, here or in the ring. */
	loop->cq_wait_idx = head + (head == tail && (held->holding || held->first == held->end));
	return IOU_LOOP_CONTINUE;
}

SEC(".struct_ops.link") struct io_uring_bpf_ops nvlane_ops = {
	.loop_step = (void *)nvlane_loop_step,
};
