/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * entries.h: what the loop has the ring do, and what its results mean. Included by loop.bpf.c.
 */
#ifndef NVLANE_ENTRIES_H
#define NVLANE_ENTRIES_H

/* What is known of a request of the queue. */
static __always_inline struct nvlane_flight *nvlane_flight_of(struct nvlane_queue_state *q, __u32 tag)
{
	__u32 key = q->flights + tag;

	return tag < nvlane_config.depth ? bpf_map_lookup_elem(&nvlane_flights, &key) : (void *)0;
}

/* The next one. There is room: nobody begins more than fits (NVLANE_FULL). */
static __always_inline __u64 *nvlane_entry(struct nvlane_sq *sq, struct nvlane_queue_state *q, __u32 op, __u32 file,
					   __u64 about)
{
	__u64 *word = sq->entry[q->filled++ & (NVLANE_SQ_ENTRIES - 1)].word;

	word[0] = op | (__u64)file << 32;
	word[4] = about;
	word[5] = word[6] = word[7] = 0;
	return word;
}

/* Whether a request that comes now begins now: nobody holds it back, is there before it, or has left it no room. */
static __always_inline int nvlane_may_begin(struct nvlane_held *held, struct nvlane_queue_state *q)
{
	return !held->holding && held->first == held->end && q->filled <= NVLANE_FULL;
}

/* Ends a request: bytes, or an error below 0. */
static __always_inline void nvlane_end_request(struct nvlane_sq *sq, struct nvlane_memory *memory,
					       struct nvlane_queue_state *q, __u32 tag, __s32 result)
{
	__u64 *word;

	q->busy--;
	if (nvlane_config.batches) {
		struct nvlane_result *to = &memory->result[q->gathered++ & (NVLANE_DEPTH_MAX - 1)];

		to->tag = tag;
		to->buffer = tag;
		to->result = result;
		return;
	}
	word = nvlane_entry(sq, q, NVLANE_OP_COMMAND, 0, NVLANE_ABOUT(NVLANE_FETCH, 0, 0, tag));
	word[1] = nvlane_config.commit;
	word[2] = tag;		/* the place in the table where the next request's pages are put */
	word[3] = 0;
	word[6] = q->queue | (__u64)tag << 16 | (__u64)(__u32)result << 32;
}

/*
 * Commits what was gathered, and asks for requests again if that has ended. The driver has read the results when the
 * entry is submitted, so the next ones may take their place.
 */
static __always_inline void nvlane_hand_in(struct nvlane_sq *sq, struct nvlane_queue_state *q)
{
	__u32 count = q->gathered;
	__u64 *word;

	if (count) {
		word = nvlane_entry(sq, q, NVLANE_OP_COMMAND, 0,
				    NVLANE_ABOUT(NVLANE_COMMITTED, 0, 0, count * sizeof(struct nvlane_result)));
		word[1] = nvlane_config.commit;
		word[2] = q->memory + NVLANE_PLACE(result);
		word[3] = 0;
		word[6] = q->queue | (__u64)count << 32 | (__u64)sizeof(struct nvlane_result) << 48;
		q->gathered = 0;
		q->committing++;
	}
	if (q->refetch) {
		word = nvlane_entry(sq, q, NVLANE_OP_SELECT, 0, NVLANE_ABOUT(NVLANE_FETCH, 0, 0, 0));
		word[1] = nvlane_config.fetch;
		word[2] = 0;
		word[3] = 2ull << 32;		/* IORING_URING_CMD_MULTISHOT */
		word[6] = q->queue | (__u64)sizeof(__u16) << 48;
		q->refetch = 0;
	}
}

/* What has become of a commit: so many bytes of results were to be taken. */
static __always_inline void nvlane_committed(struct nvlane_queue_state *q, __u64 about, __s32 result)
{
	if (q->committing)
		q->committing--;
	if (result != (__s32)about && !q->error)
		q->error = result < 0 ? -result : NVLANE_EIO;
}

/* Gives a buffer for tags back to the ring, which takes them on this very thread. */
static __always_inline void nvlane_give_back(struct nvlane_memory *memory, struct nvlane_queue_state *q, __u32 id)
{
	__u16 tail = *(volatile __u16 *)&memory->buffer[0].tail;
	struct nvlane_buffer *to = &memory->buffer[tail & (NVLANE_BUFFERS - 1)];

	to->address = q->memory + NVLANE_PLACE(tag) + (__u64)id * sizeof(memory->tag[0]);
	to->bytes = sizeof(memory->tag[0]);
	to->id = id;
	*(volatile __u16 *)&memory->buffer[0].tail = tail + 1;
}

/* What a program makes of a DISCARD frees blocks, too; what reads as zeroes then is enough. */
static __always_inline int nvlane_frees(struct nvlane_flight *f, __u32 op)
{
	return op == NVLANE_DISCARD || f->op == NVLANE_DISCARD || f->flags & NVLANE_MAY_DISCARD;
}

static __always_inline void nvlane_send(struct nvlane_sq *sq, struct nvlane_queue_state *q, struct nvlane_flight *f,
					__u32 tag, __u32 i)
{
	struct nvlane_part *p = &f->r.part[i & (NVLANE_PARTS_MAX - 1)];
	__u32 shift = nvlane_config.block_shift & 31, op = p->op, backend = p->backend & (NVLANE_BACKENDS_MAX - 1);
	__u64 bytes = (__u64)p->blocks << shift;
	__u32 moved = f->moved[i & (NVLANE_PARTS_MAX - 1)];
	__u32 code = op == NVLANE_READ ? NVLANE_OP_READ : op == NVLANE_WRITE ? NVLANE_OP_WRITE
		: op == NVLANE_FLUSH ? NVLANE_OP_FSYNC : NVLANE_OP_FALLOCATE;
	__u64 *word = nvlane_entry(sq, q, code, 1 + backend, NVLANE_ABOUT(NVLANE_PART, backend, i, tag));

	word[1] = p->block << shift;
	if (op == NVLANE_FLUSH) {
		word[2] = 0;
		word[3] = 1ull << 32;		/* IORING_FSYNC_DATASYNC */
	} else if (op <= NVLANE_READ) {
		word[1] += moved;
		word[2] = ((__u64)p->offset << shift) + moved;
		word[3] = (__u32)(bytes - moved) | (op == NVLANE_WRITE && f->flags & NVLANE_FUA ? 2ull << 32 : 0);	/* RWF_DSYNC */
		word[5] = tag;			/* the table's place */
	} else {
		word[2] = bytes;
		word[3] = nvlane_frees(f, op) && !(f->no_hole >> (i & 31) & 1) ? NVLANE_MAKE_HOLE : NVLANE_ZERO_RANGE;
	}
}

/* Fills a read, or what is left of it, with zeroes. */
static __always_inline void nvlane_blank(struct nvlane_sq *sq, struct nvlane_queue_state *q, struct nvlane_flight *f,
					 __u32 tag)
{
	__u64 *word = nvlane_entry(sq, q, NVLANE_OP_READ, NVLANE_FILE_ZERO, NVLANE_ABOUT(NVLANE_BLANK, 0, 0, tag));

	word[1] = 0;
	word[2] = f->moved[0];
	word[3] = f->bytes - f->moved[0];
	word[5] = tag;
}

/* Has the ring wait; a tag has one time, which is read when the entry is submitted. */
static __always_inline void nvlane_sleep(struct nvlane_sq *sq, struct nvlane_memory *memory, struct nvlane_queue_state *q,
					 __u32 tag, __u64 ns, __u64 about)
{
	struct nvlane_time *time = &memory->time[tag & (NVLANE_DEPTH_MAX - 1)];
	__u64 *word = nvlane_entry(sq, q, NVLANE_OP_TIMEOUT, -1u, about);

	time->seconds = ns / 1000000000;
	time->ns = ns % 1000000000;
	word[1] = 0;
	word[2] = q->memory + NVLANE_PLACE(time) + (__u64)tag * sizeof(*time);
	word[3] = 1;
}

/* Whether the kernel lacked something that it may have in a moment. */
static __always_inline int nvlane_may_pass(__s32 result)
{
	return result == -NVLANE_EINTR || result == -NVLANE_EAGAIN || result == -NVLANE_ENOMEM
		|| result == -NVLANE_ENOBUFS;
}

static __always_inline __s32 nvlane_outcome(struct nvlane_flight *f, __u32 status)
{
	switch (status) {
	case NVLANE_OK:
		return f->bytes;
	case NVLANE_READ_ERROR:
		return -NVLANE_ENODATA;
	case NVLANE_NO_SPACE:
		return -NVLANE_ENOSPC;
	case NVLANE_INVALID_OPCODE:
		return -NVLANE_EOPNOTSUPP;
	}
	return -NVLANE_EIO;
}

/* The status that tells an error best (crates/namespace/src/file/queue.rs). */
static __always_inline __u32 nvlane_status(__u32 op, __s32 result)
{
	switch (-result) {
	case NVLANE_ENOSPC: case NVLANE_EDQUOT: case NVLANE_EFBIG:
		return NVLANE_NO_SPACE;
	case NVLANE_EROFS: case NVLANE_EPERM: case NVLANE_EBADF:
		return NVLANE_READ_ONLY;
	case NVLANE_EAGAIN: case NVLANE_ENOMEM: case NVLANE_ENOBUFS:
		return op == NVLANE_FLUSH ? NVLANE_WRITE_FAULT : NVLANE_INTERRUPTED;
	case NVLANE_EOPNOTSUPP:
		return op == NVLANE_WRITE_ZEROES ? NVLANE_INVALID_OPCODE : NVLANE_IO_ERROR;
	case NVLANE_EINVAL: case NVLANE_EFAULT:
		return NVLANE_IO_ERROR;
	}
	return op == NVLANE_READ ? NVLANE_READ_ERROR : NVLANE_WRITE_FAULT;
}

#endif /* NVLANE_ENTRIES_H */
