/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * shared.h: what the loop and user space tell one another: crates/ublk-bpf/src/abi.rs has the same. Included by loop.bpf.c.
 */
#ifndef NVLANE_SHARED_H
#define NVLANE_SHARED_H

#define NVLANE_SQ_ENTRIES 256
#define NVLANE_DEPTH_MAX 1024
#define NVLANE_MISTAKES_KEPT 32
#define NVLANE_TAKEN_MAX 7
#define NVLANE_TURN_MAX 64		/* completions of a turn: the verifier looks at each */
#define NVLANE_BUFFERS 64
#define NVLANE_BATCH_MAX 128
/* The loop's own entries: one that commits what was gathered, and one that fetches again. */
#define NVLANE_FULL (NVLANE_SQ_ENTRIES - NVLANE_PARTS_MAX - 2)
_Static_assert(NVLANE_TAKEN_MAX * NVLANE_PARTS_MAX <= NVLANE_FULL + NVLANE_PARTS_MAX, "they fit as well");

/* ---- What user space tells, and what it is told ----------------------------------------------- */

/* Constants of a device's queues, which have the program in common: the verifier looks at it once. */
struct nvlane_loop_config {
	__u64 device_blocks;
	__u64 sizes[NVLANE_BACKENDS_MAX];
	__u32 cq_bytes, cq_head, cq_tail, cq_entries, cq_mask;
	__u32 commit, fetch;		/* numbers of the driver's commands */
	__u32 blocks_max;		/* of a read or write */
	__u16 depth, backends;
	__u8 block_shift, deallocates;
	__u8 defers;			/* there is an NVLANE_DEFERRED */
	__u8 batches;			/* requests come many at a time, and so do their results go */
	__u8 has_done;			/* there is an NVLANE_DONE */
	__u8 reserved[7];
};
_Static_assert(sizeof(struct nvlane_loop_config) == 184, "as in crates/ublk-bpf/src/abi.rs");

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
	__u64 losses;			/* how often a backend said that data is lost */
};

struct nvlane_queue_state {
	/* These are user space's. */
	__u64 descriptors;		/* address of the driver's descriptors, in the server */
	__u64 memory;			/* address of the ring's memory region there */
	__u32 queue;			/* which queue */
	__u32 flights;			/* where its requests begin among those of all queues */

	__u64 requests, completions, entries, submissions, steps;
	__u64 losses;			/* those that its users were told of */
	__u32 busy;			/* requests that the program has */
	__u32 ended;			/* tags that the driver has taken back */
	__s32 error;
	__u32 told;			/* of `ended`, what user space was woken for */
	__u32 over;			/* in batches: no request comes any more */
	__u32 in_vain;			/* how often fetching has ended since one came */
	__u32 filled;			/* entries of this turn */
	__u32 gathered;			/* results that are to be committed */
	__u32 refetch;			/* the driver is to be asked for requests again */
	__u32 committing;		/* commits of which the driver has not said what became of them */
	__u32 in_flight[NVLANE_BACKENDS_MAX];
	/* So that no two queues, which lie side by side, change the same line of the cache. */
	__u64 reserved[10];
};
_Static_assert(sizeof(struct nvlane_queue_state) == 256, "as in crates/ublk-bpf/src/abi.rs");

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
 * Requests that have come and not begun, in their order: those of a batch, and all that come while another program takes
 * this one's place. User space writes `holding` and `called` while the loop does not run.
 */
struct nvlane_held {
	__u32 holding;			/* not 0: requests that come are for the next program */
	__u32 called;			/* user space was asked for since it was 0 */
	__u32 first, end;		/* of those that wait: counts */
	__u16 tag[NVLANE_DEPTH_MAX];
};

struct nvlane_flight {
	__u64 start, delay_ns;
	__u32 blocks;			/* these four as in the request */
	__u8 op, shift;
	__u16 flags;
	__u32 bytes, line;
	__u32 failed, pending;
	__u32 no_hole;			/* parts whose backend makes no holes */
	__s32 returned;
	__u16 status, result, parts;
	__u8 phase, is_whole, then, entry;
	/* Of each part, or of a BLANK: bytes that are there already, and how often it was turned away. */
	__u32 moved[NVLANE_PARTS_MAX];
	__u8 tries[NVLANE_PARTS_MAX];
	/*
	 * The program's. Nothing comes after it: the verifier believes a program's own word for how large what it is given is,
	 * as far as there is anything.
	 */
	struct nvlane_request r;
};
_Static_assert(__builtin_offsetof(struct nvlane_flight, r) + sizeof(struct nvlane_request) == sizeof(struct nvlane_flight), "the end");

#endif /* NVLANE_SHARED_H */
