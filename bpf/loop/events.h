/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * events.h: what becomes of a request, event by event. Included by loop.bpf.c.
 *
 *   nvlane_kernel_come	its descriptor is read, the program runs --> decide
 *   nvlane_kernel_part	a part has ended; after the last the program runs again, if it wants to --> decide
 *   nvlane_kernel_decide	what the program wants is checked --> act, a pause, user space
 *   nvlane_kernel_act	parts are sent, or the request ends
 *   nvlane_kernel_event	whatever comes seldom
 *
 * What comes for each request, one part of it that reads or writes it as a whole, is done without a call in between.
 */
#ifndef NVLANE_EVENTS_H
#define NVLANE_EVENTS_H

/*
 * What the program is given; it may have overwritten any of it in an earlier run. By whole words, since this is for each
 * request.
 */
#define NVLANE_AT(of, member) (__builtin_offsetof(struct of, member))
_Static_assert(NVLANE_AT(nvlane_request, blocks) == 8 && NVLANE_AT(nvlane_request, flags) == 14, "word 1");
_Static_assert(NVLANE_AT(nvlane_flight, blocks) % 8 == 0
	       && NVLANE_AT(nvlane_flight, flags) == NVLANE_AT(nvlane_flight, blocks) + 6, "the same");
_Static_assert(NVLANE_AT(nvlane_request, tag) == 24 && NVLANE_AT(nvlane_request, place) == 31, "word 3");
_Static_assert(NVLANE_AT(nvlane_request, failed) == 32 && NVLANE_AT(nvlane_request, status) == 36, "word 4");
_Static_assert(NVLANE_AT(nvlane_request, parts) == 72 && NVLANE_AT(nvlane_request, delay_ns) == 88, "words 9 to 11");
typedef __u64 __attribute__((may_alias)) nvlane_word;

static __always_inline void nvlane_prepare(struct nvlane_flight *f, struct nvlane_queue_state *q, __u32 tag)
{
	nvlane_word *word = (void *)&f->r;
	__u32 i;

	word[0] = f->start;
	word[1] = *(nvlane_word *)&f->blocks;
	word[2] = nvlane_config.device_blocks;
	word[3] = tag | (__u64)nvlane_config.backends << 32 | (__u64)f->phase << 48 | (__u64)NVLANE_KERNEL << 56;
	word[4] = f->failed | (__u64)f->status << 32;
	word[9] = word[10] = word[11] = 0;
	NVLANE_LOOP for (i = 0; i < NVLANE_BACKENDS_MAX; i++) {
		if (i >= nvlane_config.backends)
			break;
		f->r.backend[i].blocks = nvlane_config.sizes[i];
		*(nvlane_word *)&f->r.backend[i].in_flight = q->in_flight[i];	/* no flags */
	}
}

/* Whether a run wants all of a read or write from one backend and nothing else, and can have that. */
static __always_inline int nvlane_is_simple(struct nvlane_flight *f)
{
	nvlane_word *word = (void *)&f->r;
	struct nvlane_part *p = &f->r.part[0];
	__u64 size = nvlane_config.sizes[p->backend & (NVLANE_BACKENDS_MAX - 1)];

	return word[9] == 1 && !word[11] && p->backend < nvlane_config.backends && p->op == f->op && f->bytes
	       && !p->offset && p->blocks == f->blocks && p->block <= size && p->blocks <= size - p->block;
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

/* ---- Doing what was decided --------------------------------------------------------------------- */

/* So many parts are sent, and will end. */
static __always_inline void nvlane_expect(struct nvlane_flight *f, __u32 parts)
{
	f->failed = 0;
	f->status = NVLANE_OK;
	f->pending = parts;
	f->no_hole = 0;
}

static __always_inline void nvlane_send_first(struct nvlane_sq *sq, struct nvlane_queue_state *q, struct nvlane_flight *f,
					      __u32 tag, __u32 i)
{
	f->moved[i] = 0;
	f->tries[i] = 0;
	q->in_flight[f->r.part[i].backend & (NVLANE_BACKENDS_MAX - 1)]++;
	nvlane_send(sq, q, f, tag, i);
}

/* A request is done. */
static __always_inline void nvlane_finish(struct nvlane_sq *sq, struct nvlane_memory *memory, struct nvlane_queue_state *q,
					  struct nvlane_flight *f, __u32 tag, __u32 status)
{
	if (status == NVLANE_OK && f->op == NVLANE_READ && !f->is_whole) {
		f->moved[0] = 0;
		nvlane_blank(sq, q, f, tag);
	} else {
		nvlane_end_request(sq, memory, q, tag, nvlane_outcome(f, status));
	}
}

/* Carries out what was decided. */
NVLANE_GLOBAL int nvlane_kernel_act(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
				    struct nvlane_queue_state *q NVLANE_NONNULL, struct nvlane_flight *f NVLANE_NONNULL,
				    __u32 tag)
{
	__u32 i, parts = f->parts;

	if (f->then == NVLANE_THEN_NOTHING && !f->phase) {	/* a flush: everywhere */
		parts = nvlane_config.backends;
		NVLANE_LOOP for (i = 0; i < NVLANE_BACKENDS_MAX; i++) {
			f->r.part[i].op = NVLANE_FLUSH;
			f->r.part[i].backend = i;
			f->r.part[i].block = 0;
			f->r.part[i].blocks = f->r.part[i].offset = 0;
		}
	} else if (f->then != NVLANE_THEN_PARTS) {
		nvlane_finish(sq, memory, q, f, tag, f->then == NVLANE_THEN_END ? f->result : f->status);
		return 0;
	}
	nvlane_expect(f, parts);
	NVLANE_LOOP for (i = 0; i < NVLANE_PARTS_MAX; i++) {
		if (i >= parts)
			break;
		nvlane_send_first(sq, q, f, tag, i);
	}
	return 0;
}

/* Gives a request to user space, for NVLANE_DEFERRED. */
static __always_inline void nvlane_give(struct nvlane_flight *f, struct nvlane_queue_state *q, __u32 tag)
{
	__u32 key = q->queue;
	struct nvlane_deferrals *deferrals = bpf_map_lookup_elem(&nvlane_deferrals, &key);

	if (!deferrals)
		return;
	f->entry = NVLANE_IN_DEFERRED;
	nvlane_prepare(f, q, tag);
	f->r.place = NVLANE_USER;
	deferrals->tag[deferrals->given++ & (NVLANE_DEPTH_MAX - 1)] = tag;
}

/* Looks at what a run has left, and does it if it can be done. */
NVLANE_GLOBAL int nvlane_kernel_decide(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
				       struct nvlane_queue_state *q NVLANE_NONNULL, struct nvlane_flight *f NVLANE_NONNULL,
				       __u32 tag)
{
	int wrong = f->returned ? nvlane_wrong(f, NVLANE_RETURNED, 0, 0, 0) : nvlane_check(f);

	if (wrong) {
		nvlane_kernel_mistake(f, wrong);
		nvlane_end_request(sq, memory, q, tag, -NVLANE_EIO);
	} else if (f->then == NVLANE_THEN_DEFER) {
		nvlane_give(f, q, tag);
	} else if (f->delay_ns) {
		nvlane_sleep(sq, memory, q, tag, f->delay_ns, NVLANE_ABOUT(NVLANE_PAUSE, 0, 0, tag));
	} else {
		nvlane_kernel_act(sq, memory, q, f, tag);
	}
	return 0;
}

/* ---- What comes --------------------------------------------------------------------------------- */

/* Reads the descriptor of a request that has come; the number of the error if it is none of ours. */
static __always_inline int nvlane_begin(struct nvlane_flight *f, struct nvlane_queue_state *q, __u32 tag)
{
	__u32 shift = (nvlane_config.block_shift - 9) & 7, mask = (1u << shift) - 1, op, opcode, blocks = 0, flags = 0;
	__u64 start = 0;
	struct nvlane_descriptor d;

	if (nvlane_read_user(&d, sizeof(d), (void *)(q->descriptors + (__u64)tag * sizeof(d))))
		return NVLANE_EFAULT;
	op = d.op_flags & 0xff;
	if (op > 5 || op == 4)
		return NVLANE_EOPNOTSUPP;
	opcode = op == 0 ? NVLANE_READ : op == 1 ? NVLANE_WRITE : op == 2 ? NVLANE_FLUSH
		: op == 3 ? NVLANE_DISCARD : NVLANE_WRITE_ZEROES;
	if (op != 2) {
		if (!d.sectors || (d.sectors | d.start) & mask)
			return NVLANE_EINVAL;
		start = d.start >> shift;
		blocks = d.sectors >> shift;
		if (blocks > nvlane_config.blocks_max || start > nvlane_config.device_blocks
		    || blocks > nvlane_config.device_blocks - start)
			return NVLANE_EINVAL;
		if (op != 0 && op != 3 && d.op_flags & 1u << 13)
			flags = NVLANE_FUA;
		if (op == 5 && nvlane_config.deallocates && !(d.op_flags & 1u << 15))
			flags |= NVLANE_MAY_DISCARD;
	}
	f->start = start;
	f->blocks = blocks;
	f->op = opcode;
	f->shift = nvlane_config.block_shift;
	f->flags = flags;
	f->bytes = op <= 1 ? d.sectors << 9 : 0;
	f->phase = f->is_whole = f->then = 0;
	f->entry = NVLANE_IN_ROUTE;
	f->failed = 0;
	f->status = NVLANE_OK;
	f->r.state[0] = f->r.state[1] = f->r.state[2] = f->r.state[3] = 0;
	return 0;
}

/* A request has come. */
NVLANE_GLOBAL int nvlane_kernel_come(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
				     struct nvlane_queue_state *q NVLANE_NONNULL, __u32 tag)
{
	struct nvlane_flight *f = nvlane_flight_of(q, tag);
	int wrong;

	if (!f)
		return 0;
	q->requests++;
	q->busy++;
	wrong = nvlane_begin(f, q, tag);
	if (wrong) {
		nvlane_end_request(sq, memory, q, tag, -wrong);
		return 0;
	}
	nvlane_prepare(f, q, tag);
	f->returned = nvlane_kernel_route(&f->r);
	if (f->returned || !nvlane_is_simple(f)) {
		nvlane_kernel_decide(sq, memory, q, f, tag);
		return 0;
	}
	nvlane_expect(f, 1);
	nvlane_send_first(sq, q, f, tag, 0);
	return 0;
}

/*
 * A backend tells once that it could not write something back, whoever asks, and has dropped it: what one queue was told, the users of
 * all others are told by their next flush (crates/namespace/src/file/queue.rs). Whether there is something to tell.
 */
NVLANE_GLOBAL int nvlane_kernel_losses(struct nvlane_queue_state *q NVLANE_NONNULL, __u32 more, __u32 is_flush)
{
	__u32 key = 0;
	struct nvlane_mistake_log *log = bpf_map_lookup_elem(&nvlane_mistakes, &key);
	__u64 losses, told = q->losses;

	if (!log)
		return 0;
	if (more)
		__sync_fetch_and_add(&log->losses, 1);
	losses = log->losses;
	if (is_flush)
		q->losses = losses;
	return losses != told;
}

/* Whether a write with FUA that fails so surely failed for itself. */
static __always_inline int nvlane_is_its_own(__s32 result)
{
	return nvlane_may_pass(result) || result == -NVLANE_EINVAL || result == -NVLANE_EFAULT || result == -NVLANE_EBADF
		|| result == -NVLANE_EPERM;
}

/* A part has ended. 1 if it was the last, 2 if it or its rest is to be sent again, 3 if so after a pause. */
static __always_inline int nvlane_ended(struct nvlane_queue_state *q, struct nvlane_flight *f, __u32 part, __s32 result)
{
	__u32 i = part & (NVLANE_PARTS_MAX - 1), status = NVLANE_OK;
	struct nvlane_part *p = &f->r.part[i];
	__u32 left = (p->blocks << (nvlane_config.block_shift & 31)) - f->moved[i];

	if (result < 0) {
		/* a flush that has failed would succeed the next time, though what it was to make durable is gone */
		if (nvlane_may_pass(result) && (p->op != NVLANE_FLUSH || result == -NVLANE_EINTR)
		    && f->tries[i] < NVLANE_TRIES_MAX) {
			f->tries[i]++;
			return 3;
		}
		if (result == -NVLANE_EOPNOTSUPP && p->op == NVLANE_WRITE_ZEROES && nvlane_frees(f, p->op)
		    && !(f->no_hole >> i & 1)) {
			f->no_hole |= 1u << i;
			return 2;
		}
		if (p->op != NVLANE_DISCARD || result != -NVLANE_EOPNOTSUPP)	/* that is advice */
			status = nvlane_status(p->op, result);
		if (p->op == NVLANE_FLUSH)
			nvlane_kernel_losses(q, 1, 1);
		else if (p->op == NVLANE_WRITE && f->flags & NVLANE_FUA && !nvlane_is_its_own(result))
			nvlane_kernel_losses(q, 1, 0);
	} else if (p->op == NVLANE_FLUSH) {
		if (nvlane_kernel_losses(q, 0, 1))
			status = NVLANE_WRITE_FAULT;
	} else if (p->op == NVLANE_READ || p->op == NVLANE_WRITE) {
		if (result > 0 && result < left) {	/* what is wrong with the rest, it tells itself */
			f->moved[i] += result;
			return 2;
		}
		if (result != left)
			status = p->op == NVLANE_READ ? NVLANE_OUT_OF_RANGE : NVLANE_WRITE_FAULT;
	}
	if (status != NVLANE_OK) {
		f->failed |= 1u << i;
		if (f->status == NVLANE_OK)
			f->status = status;
	}
	if (--f->pending)
		return 0;
	f->phase++;
	f->is_whole |= !f->failed;
	return 1;
}

/* A part has ended. */
NVLANE_GLOBAL int nvlane_kernel_part(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
				     struct nvlane_queue_state *q NVLANE_NONNULL, __u64 about, __s32 result)
{
	__u32 tag = about, part = about >> 32 & (NVLANE_PARTS_MAX - 1);
	__u32 backend = about >> 40 & (NVLANE_BACKENDS_MAX - 1), tries;
	struct nvlane_flight *f = nvlane_flight_of(q, tag);

	if (!f)
		return 0;
	q->in_flight[backend]--;
	switch (nvlane_ended(q, f, part, result)) {
	case 1:
		if (!nvlane_config.has_done) {
			nvlane_finish(sq, memory, q, f, tag, f->status);
			break;
		}
		f->entry = NVLANE_IN_DONE;
		nvlane_prepare(f, q, tag);
		f->returned = nvlane_kernel_done(&f->r);
		nvlane_kernel_decide(sq, memory, q, f, tag);
		break;
	case 2:
		q->in_flight[backend]++;
		nvlane_send(sq, q, f, tag, part);
		break;
	case 3:		/* a millisecond, then twice as long, to half a second */
		tries = f->tries[part];
		nvlane_sleep(sq, memory, q, tag, 1000000ull << (tries < 10 ? tries - 1 : 9),
			     NVLANE_ABOUT(NVLANE_RETRY, backend, part, tag));
	}
	return 0;
}

/* The driver has given requests, or ceases to. Those that cannot begin yet wait. */
NVLANE_GLOBAL int nvlane_kernel_fetched(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
					struct nvlane_queue_state *q NVLANE_NONNULL, __s32 result, __u32 flags)
{
	__u32 i, key = q->queue, id = flags >> 16 & (NVLANE_BUFFERS - 1), count = result > 0 ? (__u32)result / 2 : 0;
	struct nvlane_held *held = bpf_map_lookup_elem(&nvlane_held, &key);

	if (!held)
		return 0;
	if (flags & NVLANE_HAS_BUFFER) {
		q->in_vain = 0;
		NVLANE_LOOP for (i = 0; i < NVLANE_BATCH_MAX; i++) {
			if (i >= count)
				break;
			if (nvlane_may_begin(held, q))
				nvlane_kernel_come(sq, memory, q, memory->tag[id][i]);
			else
				held->tag[held->end++ & (NVLANE_DEPTH_MAX - 1)] = memory->tag[id][i];
		}
		nvlane_give_back(memory, q, id);
	}
	if (flags & NVLANE_MORE)
		return 0;
	/* Without buffers, or room for a completion, it ends for this time only. */
	if (result >= 0 || nvlane_may_pass(result) || result == -NVLANE_EOVERFLOW) {
		q->refetch = q->in_vain++ < NVLANE_IN_VAIN_MAX;
		if (q->refetch)
			return 0;
	}
	q->over = 1;
	if (result != -NVLANE_ENODEV && !q->error)
		q->error = result < 0 ? -result : NVLANE_EIO;
	return 0;
}

/* What comes seldom. */
NVLANE_GLOBAL int nvlane_kernel_event(struct nvlane_sq *sq NVLANE_NONNULL, struct nvlane_memory *memory NVLANE_NONNULL,
				      struct nvlane_queue_state *q NVLANE_NONNULL, __u64 about, __s32 result)
{
	__u32 tag = about, kind = about >> 56, part = about >> 32 & (NVLANE_PARTS_MAX - 1), key = q->queue;
	__u32 backend = about >> 40 & (NVLANE_BACKENDS_MAX - 1);
	struct nvlane_flight *f = nvlane_flight_of(q, tag);
	struct nvlane_held *held = bpf_map_lookup_elem(&nvlane_held, &key);

	if (!held)
		return 0;
	if (kind == NVLANE_CALL) {
		held->called = 1;
		return 0;
	}
	if (kind == NVLANE_COMMITTED) {
		nvlane_committed(q, about, result);
		return 0;
	}
	if (!f)
		return 0;
	if (kind == NVLANE_FETCH && !result) {	/* while others wait */
		held->tag[held->end++ & (NVLANE_DEPTH_MAX - 1)] = tag;
	} else if (kind == NVLANE_FETCH) {
		q->ended++;
		if (result != -NVLANE_ENODEV && !q->error)
			q->error = -result;
	} else if (kind == NVLANE_PAUSE) {
		nvlane_kernel_act(sq, memory, q, f, tag);
	} else if (kind == NVLANE_TAKEN) {	/* what is wanted is in the request, as ever */
		f->returned = result;
		nvlane_kernel_decide(sq, memory, q, f, tag);
	} else if (kind == NVLANE_RETRY) {
		q->in_flight[backend]++;
		nvlane_send(sq, q, f, tag, part);
	} else if (result > 0 && result < f->bytes - f->moved[0]) {	/* NVLANE_BLANK */
		f->moved[0] += result;
		nvlane_blank(sq, q, f, tag);
	} else {
		nvlane_end_request(sq, memory, q, tag,
				   result == f->bytes - f->moved[0] ? f->bytes : -NVLANE_EIO);
	}
	return 0;
}

#endif /* NVLANE_EVENTS_H */
