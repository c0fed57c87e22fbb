/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * nvlane_loop.h: the loop around a program that runs in the kernel. Included by nvlane_bpf.h.
 *
 *   completion queue --> nvlane_loop_step --> nvlane_kernel_event, for each completion:
 *	FETCH	a request has come	begin, NVLANE_ROUTE, check --> parts | a pause | commit
 *	PART	a part has ended	the last one: NVLANE_DONE, check --> the same
 *	PAUSE	a delay is over		what was decided before it
 *	BLANK	a read was filled with zeroes	commit
 *	RETRY	a part has waited	it is sent again
 *	CALL	user space is wanted	the loop stops
 *   while requests are held back, those that come are noted, and user space is told when no other is left
 *   what was deferred --> user space: NVLANE_DEFERRED --> TAKEN: check --> the same
 *   submission queue <-- at most 32 entries per completion; io_uring carries them out
 *
 * The functions named nvlane_kernel_* are verified one by one, and belong to the kernel alone, as do the maps
 * and sections named after nvlane: the machine in user space leaves them out. Offsets into the ring come from
 * user space as constants, so that nothing depends on the kernel's own structures.
 *
 * What a program wants is checked by nvlane_check.h, and becomes entries for the ring by nvlane_entries.h.
 * Only what crates/ublk-bpf shares is named in both places: see its abi.rs.
 */
#ifndef NVLANE_LOOP_H
#define NVLANE_LOOP_H

#define NVLANE_SQ_ENTRIES 256
#define NVLANE_DEPTH_MAX 1024
#define NVLANE_MISTAKES_KEPT 32
#define NVLANE_TAKEN_MAX 7
_Static_assert((NVLANE_TAKEN_MAX + 1) * NVLANE_PARTS_MAX <= NVLANE_SQ_ENTRIES, "they and a completion more fit");

/* ---- What user space tells, and what it is told ----------------------------------------------- */

/* Constants of a queue. */
struct nvlane_loop_config {
	__u64 descriptors;		/* address of the driver's descriptors, in the server */
	__u64 times;			/* address of the ring's memory region there */
	__u64 device_blocks;
	__u64 sizes[NVLANE_BACKENDS_MAX];
	__u32 cq_bytes, cq_head, cq_tail, cq_entries, cq_mask;
	__u32 commit;			/* number of the driver's command */
	__u32 blocks_max;		/* of a read or write */
	__u16 queue, depth, backends;
	__u8 block_shift, deallocates;
	__u8 defers;			/* there is an NVLANE_DEFERRED */
};

const volatile struct nvlane_loop_config nvlane_config SEC(".rodata.nvlane");

/* What is wrong with a list of actions; numbered as in crates/ublk-bpf. */
enum {
	NVLANE_RETURNED = 1,
	NVLANE_TOO_MANY_PARTS,
	NVLANE_NO_BACKEND,
	NVLANE_WRONG_OPERATION,
	NVLANE_BEYOND_BACKEND,
	NVLANE_WRONG_LENGTH,
	NVLANE_MISSING,
	NVLANE_READ_TWICE,
	NVLANE_OVERLAP,
	NVLANE_COMPLETED_TWICE,
	NVLANE_COMPLETED_WITH_PARTS,
	NVLANE_WRONG_STATUS,
	NVLANE_LONG_DELAY,
	NVLANE_NOBODY_TAKES_IT,
	NVLANE_NOTHING,
	NVLANE_TOO_MANY_PHASES,
};

/* Which function of the program. */
enum { NVLANE_IN_ROUTE, NVLANE_IN_DONE, NVLANE_IN_DEFERRED };

struct nvlane_mistake {
	__u64 start;
	__u32 blocks;
	__u32 line;
	__s32 returned;
	__u8 kind, first, second;	/* which parts */
	__u8 op;
	__u8 entry;			/* NVLANE_IN_... */
	__u8 reserved[7];
};

struct nvlane_mistake_log {
	__u64 count;
	struct nvlane_mistake at[NVLANE_MISTAKES_KEPT];	/* number n is the 2^n-th */
};

struct nvlane_queue_state {
	__u64 requests, completions, entries, submissions, steps;
	__u32 busy;			/* requests that the program has */
	__u32 ended;			/* tags that the driver has taken back */
	__s32 error;
	__u32 told;			/* of `ended`, what user space was woken for */
	__u32 in_flight[NVLANE_BACKENDS_MAX];
};

/* Requests that are with user space, which waits while the loop runs, and the other way round. */
struct nvlane_deferrals {
	__u32 given;			/* tags that the loop has added */
	__u32 taken;			/* answers of NVLANE_DEFERRED; the loop goes through all of them at once */
	__u32 more;			/* not 0: user space has others still */
	__u32 reserved;
	struct nvlane_answer { __u32 tag; __s32 returned; } answer[NVLANE_TAKEN_MAX];
	__u16 tag[NVLANE_DEPTH_MAX];
};

/*
 * Requests that are held back, in their order, while another program takes this one's place. User space writes `holding`
 * and `called` while the loop does not run.
 */
struct nvlane_held {
	__u32 holding;			/* not 0: requests that come are for the next program */
	__u32 called;			/* user space was asked for since it was 0 */
	__u32 first, end;		/* of those that are held: counts */
	__u16 tag[NVLANE_DEPTH_MAX];
};

struct nvlane_flight {
	struct nvlane_request r;	/* the program's; what follows is not */
	__u64 start, delay_ns;
	__u32 blocks, bytes, failed, line, pending;
	__u32 no_hole;			/* parts whose backend makes no holes */
	__s32 returned;
	__u16 status, result, parts, flags;
	__u8 op, phase, is_whole, then, entry;
	/* Of each part, or of a BLANK: bytes that are there already, and how often it was turned away. */
	__u32 moved[NVLANE_PARTS_MAX];
	__u8 tries[NVLANE_PARTS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NVLANE_DEPTH_MAX);	/* user space makes it the depth */
	__type(key, __u32);
	__type(value, struct nvlane_flight);
} nvlane_flights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nvlane_queue_state);
} nvlane_queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nvlane_deferrals);
} nvlane_deferrals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
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

#define NVLANE_NONNULL __attribute__((btf_decl_tag("arg:nonnull")))
#define NVLANE_GLOBAL __attribute__((noinline))
/* What it does is not looked at by what calls it: the loop's code is the same around every program. */
#define NVLANE_OPAQUE __attribute__((noinline, weak))
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
struct nvlane_times { struct nvlane_time of[NVLANE_DEPTH_MAX]; };
struct nvlane_descriptor { __u32 op_flags, sectors; __u64 start, addr; };

/* What a completion is about: kind 63:56, backend 47:40, part 39:32, tag 31:0. */
enum {
	NVLANE_FETCH = 0, NVLANE_PART = 1, NVLANE_PAUSE = 2, NVLANE_BLANK = 3, NVLANE_RETRY = 4, NVLANE_TAKEN = 5,
	NVLANE_RELEASED = 6,		/* a request that was held back */
	NVLANE_CALL = 7,		/* of the descriptor that user space calls by */
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
};
enum { NVLANE_MAKE_HOLE = 3, NVLANE_ZERO_RANGE = 0x11 };
enum {
	NVLANE_EPERM = 1, NVLANE_EINTR = 4, NVLANE_EIO = 5, NVLANE_EBADF = 9, NVLANE_EAGAIN = 11, NVLANE_ENOMEM = 12,
	NVLANE_EFAULT = 14, NVLANE_ENODEV = 19, NVLANE_EINVAL = 22, NVLANE_EFBIG = 27, NVLANE_ENOSPC = 28,
	NVLANE_EROFS = 30, NVLANE_ENODATA = 61, NVLANE_EOPNOTSUPP = 95, NVLANE_ENOBUFS = 105, NVLANE_EDQUOT = 122,
};
enum { NVLANE_INVALID_OPCODE = 0x001, NVLANE_INTERRUPTED = 0x021, NVLANE_OUT_OF_RANGE = 0x080 };
enum { NVLANE_THEN_NOTHING, NVLANE_THEN_PARTS, NVLANE_THEN_END, NVLANE_THEN_DEFER };
#define NVLANE_TRIES_MAX 16

NVLANE_OPAQUE int nvlane_kernel_route(struct nvlane_request *r NVLANE_NONNULL)
{
	return nvlane_route_entry(r);
}

NVLANE_OPAQUE int nvlane_kernel_done(struct nvlane_request *r NVLANE_NONNULL)
{
	return nvlane_done_entry ? nvlane_done_entry(r) : r->op >> 8;
}

#include "nvlane_check.h"
#include "nvlane_entries.h"

/* ---- Running it ------------------------------------------------------------------------------- */

/* What the program is given; it may have overwritten any of it in an earlier run. */
static __always_inline void nvlane_prepare(struct nvlane_flight *f, struct nvlane_queue_state *q, __u32 tag)
{
	struct nvlane_request *r = &f->r;
	__u32 i;

	r->start = f->start;
	r->blocks = f->blocks;
	r->op = f->op;
	r->block_shift = nvlane_config.block_shift;
	r->flags = f->flags;
	r->device_blocks = nvlane_config.device_blocks;
	r->tag = tag;
	r->backends = nvlane_config.backends;
	r->phase = f->phase;
	r->place = NVLANE_KERNEL;
	r->failed = f->failed;
	r->status = f->status;
	r->parts = 0;
	r->completions = r->deferred = 0;
	r->result = r->overflow = 0;
	r->line = 0;
	r->delay_ns = 0;
	NVLANE_LOOP for (i = 0; i < NVLANE_BACKENDS_MAX; i++) {
		if (i >= nvlane_config.backends)
			break;
		r->backend[i].blocks = nvlane_config.sizes[i];
		r->backend[i].in_flight = q->in_flight[i];
		r->backend[i].flags = 0;
	}
}

NVLANE_GLOBAL int nvlane_kernel_mistake(struct nvlane_flight *f NVLANE_NONNULL, __u32 wrong)
{
	struct nvlane_mistake_log *log;
	struct nvlane_mistake *m;
	__u32 key = 0, number = 0, step;
	__u64 count;

	log = bpf_map_lookup_elem(&nvlane_mistakes, &key);
	if (!log)
		return 0;
	count = __sync_fetch_and_add(&log->count, 1) + 1;
	if (count & (count - 1))
		return 0;
	for (step = 32; step; step >>= 1)
		if (count >> step) {
			count >>= step;
			number += step;
		}
	m = &log->at[number & (NVLANE_MISTAKES_KEPT - 1)];
	m->start = f->start;
	m->blocks = f->blocks;
	m->line = f->line;
	m->returned = f->returned;
	m->entry = f->entry;
	/*
	 * Kind, first, second and op at once, and last: who reads meanwhile leaves out what has no kind. An
	 * exchange keeps that order.
	 */
	__sync_lock_test_and_set((__u32 *)&m->kind, (wrong & 0xffffff) | (__u32)f->op << 24);
	return 0;
}

/* Reads the descriptor of a request that has come; the number of the error if it is none of ours. */
NVLANE_GLOBAL int nvlane_kernel_begin(struct nvlane_flight *f NVLANE_NONNULL, __u32 tag)
{
	__u32 shift = nvlane_config.block_shift - 9, op, mask = (1u << (shift & 7)) - 1;
	struct nvlane_descriptor d;

	if (nvlane_read_user(&d, sizeof(d), (void *)(nvlane_config.descriptors + (__u64)tag * sizeof(d))))
		return NVLANE_EFAULT;
	op = d.op_flags & 0xff;
	f->op = op == 0 ? NVLANE_READ : op == 1 ? NVLANE_WRITE : op == 2 ? NVLANE_FLUSH
		: op == 3 ? NVLANE_DISCARD : NVLANE_WRITE_ZEROES;
	f->flags = 0;
	f->bytes = 0;
	f->start = 0;
	f->blocks = 0;
	f->phase = f->is_whole = 0;
	f->entry = NVLANE_IN_ROUTE;
	f->failed = 0;
	f->status = NVLANE_OK;
	f->returned = 0;
	f->r.state[0] = f->r.state[1] = f->r.state[2] = f->r.state[3] = 0;
	if (op > 5 || op == 4)
		return NVLANE_EOPNOTSUPP;
	if (op == 2)
		return 0;
	if (!d.sectors || d.sectors & mask || d.start & mask)
		return NVLANE_EINVAL;
	f->start = d.start >> (shift & 7);
	f->blocks = d.sectors >> (shift & 7);
	if (f->blocks > nvlane_config.blocks_max || f->start > nvlane_config.device_blocks
	    || f->blocks > nvlane_config.device_blocks - f->start)
		return NVLANE_EINVAL;
	if (op <= 1)
		f->bytes = d.sectors << 9;
	if (op != 0 && op != 3 && d.op_flags & 1u << 13)
		f->flags |= NVLANE_FUA;
	if (op == 5 && nvlane_config.deallocates && !(d.op_flags & 1u << 15))
		f->flags |= NVLANE_MAY_DISCARD;
	return 0;
}

/* ---- Events ----------------------------------------------------------------------------------- */

/* Carries out what was decided; the number of entries there are now. */
NVLANE_GLOBAL int nvlane_kernel_act(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_flight *f NVLANE_NONNULL,
				    __u32 tag, __u32 n)
{
	__u32 i, key = 0, parts = f->parts, status = f->status;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);

	if (!q)
		return n;
	if (f->then == NVLANE_THEN_NOTHING && !f->phase) {	/* a flush: everywhere */
		parts = nvlane_config.backends;
		NVLANE_LOOP for (i = 0; i < NVLANE_BACKENDS_MAX; i++) {
			f->r.part[i].op = NVLANE_FLUSH;
			f->r.part[i].backend = i;
			f->r.part[i].block = 0;
			f->r.part[i].blocks = f->r.part[i].offset = 0;
		}
	} else if (f->then != NVLANE_THEN_PARTS) {
		if (f->then == NVLANE_THEN_END)
			status = f->result;
		if (status == NVLANE_OK && f->op == NVLANE_READ && !f->is_whole) {
			f->moved[0] = 0;
			nvlane_blank(sq, n, f, tag);
			return n + 1;
		}
		q->busy--;
		nvlane_commit(sq, n, tag, nvlane_outcome(f, status));
		return n + 1;
	}
	f->failed = 0;
	f->status = NVLANE_OK;
	f->pending = parts;
	f->no_hole = 0;
	NVLANE_LOOP for (i = 0; i < NVLANE_PARTS_MAX; i++) {
		if (i >= parts)
			break;
		f->moved[i] = 0;
		f->tries[i] = 0;
		nvlane_send(sq, n, f, tag, i);
		q->in_flight[f->r.part[i].backend & (NVLANE_BACKENDS_MAX - 1)]++;
		n++;
	}
	return n;
}

/* A part has ended. 1 if it was the last, 2 if it or its rest is to be sent again, 3 if so after a pause. */
NVLANE_GLOBAL int nvlane_kernel_ended(struct nvlane_flight *f NVLANE_NONNULL, __u32 part, __s32 result)
{
	__u32 i = part & (NVLANE_PARTS_MAX - 1), status = NVLANE_OK;
	struct nvlane_part *p = &f->r.part[i];
	__u32 left = (p->blocks << (nvlane_config.block_shift & 31)) - f->moved[i];

	if (nvlane_may_pass(result) && f->tries[i] < NVLANE_TRIES_MAX) {
		f->tries[i]++;
		return 3;
	}
	if (result == -NVLANE_EOPNOTSUPP && p->op == NVLANE_WRITE_ZEROES && nvlane_frees(f, p->op)
	    && !(f->no_hole >> (part & 31) & 1)) {
		f->no_hole |= 1u << (part & 31);
		return 2;
	}
	if (result < 0 && !(p->op == NVLANE_DISCARD && result == -NVLANE_EOPNOTSUPP))	/* that is advice */
		status = nvlane_status(p->op, result);
	else if (p->op == NVLANE_READ || p->op == NVLANE_WRITE) {
		if (result > 0 && result < left) {	/* what is wrong with the rest, it tells itself */
			f->moved[i] += result;
			return 2;
		}
		if (result != left)
			status = p->op == NVLANE_READ ? NVLANE_OUT_OF_RANGE : NVLANE_WRITE_FAULT;
	}
	if (status != NVLANE_OK) {
		f->failed |= 1u << (part & 31);
		if (f->status == NVLANE_OK)
			f->status = status;
	}
	if (--f->pending)
		return 0;
	f->phase++;
	f->is_whole |= !f->failed;
	return 1;
}

/* Gives a request to user space, for NVLANE_DEFERRED. */
static __always_inline void nvlane_give(struct nvlane_flight *f, struct nvlane_queue_state *q, __u32 tag)
{
	__u32 key = 0;
	struct nvlane_deferrals *deferrals = bpf_map_lookup_elem(&nvlane_deferrals, &key);

	if (!deferrals)
		return;
	f->entry = NVLANE_IN_DEFERRED;
	nvlane_prepare(f, q, tag);
	f->r.place = NVLANE_USER;
	deferrals->tag[deferrals->given++ & (NVLANE_DEPTH_MAX - 1)] = tag;
}

/* One completion; the number of entries there are now. */
NVLANE_GLOBAL int nvlane_kernel_event(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_times *times NVLANE_NONNULL,
				      __u64 about, __s32 result, __u32 n)
{
	__u32 tag = about, kind = about >> 56, part = about >> 32 & 31, key = 0, backend = about >> 40 & 15;
	struct nvlane_flight *f = bpf_map_lookup_elem(&nvlane_flights, &tag);
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);
	int wrong, ended;

	if (!f || !q || tag >= NVLANE_DEPTH_MAX)
		return n;
	if (kind == NVLANE_PAUSE)
		return nvlane_kernel_act(sq, f, tag, n);
	if (kind == NVLANE_CALL || (kind == NVLANE_FETCH && !result)) {
		struct nvlane_held *held = bpf_map_lookup_elem(&nvlane_held, &key);

		if (!held)
			return n;
		if (kind == NVLANE_CALL) {
			held->called = 1;
			return n;
		}
		if (held->holding || held->first != held->end) {
			held->tag[held->end++ & (NVLANE_DEPTH_MAX - 1)] = tag;
			return n;
		}
	}
	if (kind == NVLANE_FETCH || kind == NVLANE_RELEASED) {
		if (result) {
			q->ended++;
			if (result != -NVLANE_ENODEV && !q->error)
				q->error = -result;
			return n;
		}
		q->requests++;
		q->busy++;
		wrong = nvlane_kernel_begin(f, tag);
		if (wrong) {
			q->busy--;
			nvlane_commit(sq, n, tag, -wrong);
			return n + 1;
		}
		nvlane_prepare(f, q, tag);
		f->returned = nvlane_kernel_route(&f->r);
	} else if (kind == NVLANE_PART) {
		q->in_flight[backend]--;
		ended = nvlane_kernel_ended(f, part, result);
		if (!ended)
			return n;
		if (ended == 3) {	/* a millisecond, then twice as long, to half a second */
			__u32 tries = f->tries[part];

			nvlane_sleep(sq, n, times, tag, 1000000ull << (tries < 10 ? tries - 1 : 9),
				     NVLANE_ABOUT(NVLANE_RETRY, backend, part, tag));
			return n + 1;
		}
		if (ended == 2) {
			q->in_flight[backend]++;
			nvlane_send(sq, n, f, tag, part);
			return n + 1;
		}
		if (!nvlane_done_entry) {
			f->then = NVLANE_THEN_NOTHING;
			return nvlane_kernel_act(sq, f, tag, n);
		}
		f->entry = NVLANE_IN_DONE;
		nvlane_prepare(f, q, tag);
		f->returned = nvlane_kernel_done(&f->r);
	} else if (kind == NVLANE_TAKEN) {	/* what is wanted is in the request, as ever */
		f->returned = result;
	} else if (kind == NVLANE_RETRY) {
		q->in_flight[backend]++;
		nvlane_send(sq, n, f, tag, part);
		return n + 1;
	} else {	/* NVLANE_BLANK */
		if (result > 0 && result < f->bytes - f->moved[0]) {
			f->moved[0] += result;
			nvlane_blank(sq, n, f, tag);
			return n + 1;
		}
		q->busy--;
		nvlane_commit(sq, n, tag, result == f->bytes - f->moved[0] ? f->bytes : -NVLANE_EIO);
		return n + 1;
	}
	wrong = f->returned ? nvlane_wrong(f, NVLANE_RETURNED, 0, 0, 0) : nvlane_check(f);
	if (wrong) {
		nvlane_kernel_mistake(f, wrong);
		q->busy--;
		nvlane_commit(sq, n, tag, -NVLANE_EIO);
		return n + 1;
	}
	if (f->then == NVLANE_THEN_DEFER) {
		nvlane_give(f, q, tag);
		return n;
	}
	if (!f->delay_ns)
		return nvlane_kernel_act(sq, f, tag, n);
	nvlane_sleep(sq, n, times, tag, f->delay_ns, NVLANE_ABOUT(NVLANE_PAUSE, 0, 0, tag));
	return n + 1;
}

SEC("struct_ops.s/nvlane_loop_step")
int nvlane_loop_step(__u64 *arguments)
{
	struct iou_ctx *ring = (void *)arguments[0];
	struct iou_loop_params *loop = (void *)arguments[1];
	__u32 key = 0, head, tail, n = 0, i, ended;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);
	struct nvlane_deferrals *deferrals = bpf_map_lookup_elem(&nvlane_deferrals, &key);
	struct nvlane_held *held = bpf_map_lookup_elem(&nvlane_held, &key);
	struct nvlane_times *times = (void *)bpf_io_uring_get_region(ring, 0, sizeof(*times));
	__u8 *cq = bpf_io_uring_get_region(ring, 1, nvlane_config.cq_bytes);
	struct nvlane_sq *sq = (void *)bpf_io_uring_get_region(ring, 2, sizeof(*sq));

	if (!q || !deferrals || !held)
		return IOU_LOOP_STOP;
	if (!times || !cq || !sq) {
		q->error = NVLANE_EFAULT;
		return IOU_LOOP_STOP;
	}
	head = *(volatile __u32 *)(cq + nvlane_config.cq_head);
	tail = *(volatile __u32 *)(cq + nvlane_config.cq_tail);
	q->steps++;
	NVLANE_LOOP for (i = 0; i < NVLANE_TAKEN_MAX; i++) {
		if (i >= deferrals->taken)
			break;
		n = nvlane_kernel_event(sq, times, NVLANE_ABOUT(NVLANE_TAKEN, 0, 0, deferrals->answer[i].tag),
					deferrals->answer[i].returned, n);
	}
	deferrals->taken = 0;
	NVLANE_LOOP for (i = 0; i < NVLANE_SQ_ENTRIES; i++) {
		if (held->holding || held->first == held->end || n > NVLANE_SQ_ENTRIES - NVLANE_PARTS_MAX)
			break;
		n = nvlane_kernel_event(sq, times, NVLANE_ABOUT(NVLANE_RELEASED, 0, 0,
					held->tag[held->first++ & (NVLANE_DEPTH_MAX - 1)]), 0, n);
	}
	NVLANE_LOOP for (i = 0; i < NVLANE_SQ_ENTRIES; i++) {
		struct nvlane_cqe *completion;

		if (head == tail || n > NVLANE_SQ_ENTRIES - NVLANE_PARTS_MAX)
			break;
		completion = (void *)(cq + nvlane_config.cq_entries + (__u64)(head & nvlane_config.cq_mask) * sizeof(*completion));
		head++;
		q->completions++;
		n = nvlane_kernel_event(sq, times, completion->about, completion->result, n);
	}
	*(volatile __u32 *)(cq + nvlane_config.cq_head) = head;
	if (n > NVLANE_SQ_ENTRIES) {
		q->error = NVLANE_EIO;
		return IOU_LOOP_STOP;
	}
	if (n) {
		q->submissions++;
		q->entries += n;
		if (bpf_io_uring_submit_sqes(ring, n) != n) {
			q->error = NVLANE_EIO;
			return IOU_LOOP_STOP;
		}
	}
	/* Where the driver takes tags back, user space sees what becomes of the rest. */
	ended = q->ended << 16 | (q->busy & 0xffff);
	if (q->ended && ended != q->told) {
		q->told = ended;
		return IOU_LOOP_STOP;
	}
	if (deferrals->given || deferrals->more || held->called || (held->holding && !q->busy))
		return IOU_LOOP_STOP;
	/* Others that were held back are next. */
	loop->cq_wait_idx = head + (held->holding || held->first == held->end);
	return IOU_LOOP_CONTINUE;
}

SEC(".struct_ops.link") struct io_uring_bpf_ops nvlane_ops = {
	.loop_step = (void *)nvlane_loop_step,
};

#ifndef NVLANE_LICENSE
#define NVLANE_LICENSE "Dual MIT/GPL"	/* what the loop calls in the kernel is for such programs only */
#endif
char nvlane_license[] SEC("license") = NVLANE_LICENSE;

#endif /* NVLANE_LOOP_H */
