/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * nvlane_bpf.h: block devices routed by a program, in user space or in the kernel.
 *
 *   #include "nvlane_bpf.h"
 *
 *   NVLANE_ROUTE(r)		// runs once per request
 *   {
 *	if (r->op == NVLANE_FLUSH)
 *		return 0;		// no action on a flush: every backend is flushed
 *	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
 *   }
 *
 *   clang -O2 -g --target=bpf -mcpu=v3 -c prog.bpf.c -o prog.bpf.o
 *   nvlane serve 'bpf:prog.bpf.o(/srv/a.img)'
 *
 * A program is given a request and writes down what is to become of it: parts for the backends, or a
 * status. It never sees the data. Whoever runs it then checks the list and carries it out; a wrong list
 * fails the request with an I/O error, and a log line says which line of the program made it.
 *
 * Lengths and positions are in blocks of 1 << block_shift bytes everywhere.
 */
#ifndef NVLANE_BPF_H
#define NVLANE_BPF_H

#ifndef __VMLINUX_H__
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
#endif

/* ---- The request ---------------------------------------------------------------------------- */

#define NVLANE_BACKENDS_MAX	16
#define NVLANE_PARTS_MAX	32
#define NVLANE_DELAY_NS_MAX	10000000000ull	/* 10 s */
#define NVLANE_PHASES_MAX	8

/* Operations: NVMe's opcodes. */
enum {
	NVLANE_FLUSH = 0x00,
	NVLANE_WRITE = 0x01,
	NVLANE_READ = 0x02,
	NVLANE_WRITE_ZEROES = 0x08,
	NVLANE_DISCARD = 0x09,
};

/* Flags of a request. They go down with its parts, nothing needs to be done for them. */
enum {
	NVLANE_FUA = 1,		/* WRITE, WRITE_ZEROES: is to be durable when it completes */
	NVLANE_MAY_DISCARD = 2,	/* WRITE_ZEROES: the blocks may be deallocated */
};

/* Where the program runs. */
enum { NVLANE_USER = 0, NVLANE_KERNEL = 1 };

/* Statuses: NVMe's, type and code. */
enum {
	NVLANE_OK = 0x000,
	NVLANE_IO_ERROR = 0x006,	/* Internal Error */
	NVLANE_READ_ONLY = 0x020,	/* Namespace is Write Protected */
	NVLANE_NO_SPACE = 0x081,	/* Capacity Exceeded */
	NVLANE_WRITE_FAULT = 0x280,
	NVLANE_READ_ERROR = 0x281,	/* Unrecovered Read Error */
};

struct nvlane_backend {
	__u64 blocks;			/* its size */
	__u32 in_flight;		/* parts there now, of this core */
	__u32 flags;			/* none yet */
};

/* A part of a request, for one backend. Written by bpf_ublk_queue_sqe(). */
struct nvlane_part {
	__u64 block;			/* the first, on the backend */
	__u32 blocks;
	__u32 offset;			/* the first, within the request */
	__u16 backend;
	__u8 op;
	__u8 reserved;
	__u32 line;			/* of the source, for messages */
};

struct nvlane_request {
	/* What is asked for, and of what. Changing it changes nothing. */
	__u64 start;			/* the first block */
	__u32 blocks;			/* 0 for FLUSH */
	__u8 op;
	__u8 block_shift;
	__u16 flags;
	__u64 device_blocks;		/* size of this device */
	__u32 tag;			/* no other request in flight on this core has it */
	__u16 backends;			/* how many there are */
	__u8 phase;			/* 0 in NVLANE_ROUTE, then how many times its parts have ended */
	__u8 place;			/* NVLANE_USER or NVLANE_KERNEL */
	__u32 failed;			/* NVLANE_DONE: bit n is set if part n failed */
	__u16 status;			/* NVLANE_DONE: of the first part that failed */
	__u16 reserved0;
	/* The program's own: zero in NVLANE_ROUTE, kept until the request ends. */
	__u64 state[4];
	/* What the program wants. Written by the functions below. */
	__u16 parts;
	__u8 completions;
	__u8 deferred;			/* the request is NVLANE_DEFERRED's */
	__u16 result;			/* the status it is completed with */
	__u16 overflow;			/* parts that did not fit */
	__u32 line;			/* of the last action that is no part */
	__u32 reserved1;
	__u64 delay_ns;
	struct nvlane_backend backend[NVLANE_BACKENDS_MAX];
	struct nvlane_part part[NVLANE_PARTS_MAX];
};

/* Flags of a device. */
enum {
	NVLANE_ONE_PLACE = 1,	/* each block has one place at a time, as its reads and its writes go: commands */
				/* on the same blocks at once need not be kept apart for the program's sake */
	NVLANE_MAPS_MAY_GO = 2,	/* where data is does not depend on maps and globals: another server may */
};				/* go on with a device when they begin anew (docs/bpf.md) */

/* The device as NVLANE_SETUP sees it, once, before the first request. */
struct nvlane_device {
	__u16 backends;
	__u8 block_shift;
	__u8 flags;			/* to be changed, as all below; at first 0 */
	__u32 cores;			/* that will run the program */
	__u64 blocks;			/* size of the device; at first that of the smallest backend */
	__u32 blocks_max;		/* of one request; more is cut. At first what every backend takes */
	__u32 optimal_blocks;		/* preferred size and alignment of writes */
	struct nvlane_backend backend[NVLANE_BACKENDS_MAX];	/* not these */
};

/* ---- The program ---------------------------------------------------------------------------- */

#ifndef SEC
#define SEC(name) __attribute__((section(name), used))
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

/*
 * NVLANE_ROUTE(r): a request has come. Return 0 to have the actions carried out, anything else to fail it.
 * NVLANE_DONE(r), if there: all parts have ended. Without an action the request ends with r->status.
 *	Parts make another phase; see r->failed.
 * NVLANE_DEFERRED(r), if there: what NVLANE_ROUTE or NVLANE_DONE has deferred, with r->state as they have left
 *	it. Decides in their place; runs in user space, wherever they run: the kernel's verifier never sees it.
 * NVLANE_SETUP(d), if there: the device is being opened; runs in user space. Not 0: it is refused.
 */
#define NVLANE_ROUTE(r) NVLANE_ENTRY(route, r)
#define NVLANE_DONE(r) NVLANE_ENTRY(done, r)
#define NVLANE_DEFERRED(r) SEC("nvlane/deferred") int nvlane_deferred(struct nvlane_request *r)
#define NVLANE_SETUP(d) SEC("nvlane/setup") int nvlane_setup(struct nvlane_device *d)

/* A function, and two ways to it: a section for the machine in user space, a global function that the kernel's loop calls. */
#define NVLANE_ENTRY(name, r) \
	static __always_inline int nvlane_##name##_body(struct nvlane_request *r); \
	SEC("nvlane/" #name) int nvlane_##name(struct nvlane_request *r) { return nvlane_##name##_body(r); } \
	__attribute__((noinline)) int nvlane_kernel_##name(struct nvlane_request *r NVLANE_NONNULL) { return nvlane_##name##_body(r); } \
	static __always_inline int nvlane_##name##_body(struct nvlane_request *r)

/* For the kernel's verifier, which looks at such a function by itself. */
#if __has_attribute(btf_decl_tag)
#define NVLANE_NONNULL __attribute__((btf_decl_tag("arg:nonnull")))
#else
#define NVLANE_NONNULL
#endif

/* ---- Actions -------------------------------------------------------------------------------- */

static __always_inline int nvlane_queue(struct nvlane_request *r, __u16 backend, __u8 op, __u64 block,
					__u32 blocks, __u32 offset, __u32 line)
{
	__u32 n = r->parts;
	struct nvlane_part *part;

	asm volatile("" : "+r"(n));	/* the number that is checked is the one that is used: for the verifier */
	if (n >= NVLANE_PARTS_MAX) {
		r->overflow = 1;
		r->line = line;
		return -1;
	}
	part = &r->part[n];
	part->block = block;
	part->blocks = blocks;
	part->offset = offset;
	part->backend = backend;
	part->op = op;
	part->line = line;
	r->parts = n + 1;
	return 0;
}

static __always_inline int nvlane_end(struct nvlane_request *r, __u16 status, __u32 line)
{
	r->completions++;
	r->result = status;
	r->line = line;
	return 0;
}

static __always_inline int nvlane_wait(struct nvlane_request *r, __u64 ns, __u32 line)
{
	r->delay_ns += ns;
	r->line = line;
	return 0;
}

static __always_inline int nvlane_hand_over(struct nvlane_request *r, __u32 line)
{
	r->deferred = 1;
	r->line = line;
	return 0;
}

/*
 * Queues `blocks` blocks of the request, from its block `offset` on, to backend `backend` at `block`.
 * READ: every block of the request is read exactly once. WRITE and WRITE_ZEROES: at least once, and never
 * twice to the same place. DISCARD: as one likes. FLUSH: block, blocks and offset are 0.
 * `op` is the request's, or WRITE_ZEROES for a DISCARD. Returns 0, or -1 if the list is full.
 */
#define bpf_ublk_queue_sqe(r, backend, op, block, blocks, offset) \
	nvlane_queue(r, backend, op, block, blocks, offset, __LINE__)

/* Ends the request with a status, without parts. A READ that ends with NVLANE_OK reads zeroes. */
#define nvlane_complete(r, status) nvlane_end(r, status, __LINE__)

/* Has everything else wait for so long first. Delays add up, to at most NVLANE_DELAY_NS_MAX. */
#define nvlane_delay(r, ns) nvlane_wait(r, ns, __LINE__)

/* Has NVLANE_DEFERRED decide instead: other actions of this run are forgotten. That one cannot defer itself. */
#define nvlane_defer(r) nvlane_hand_over(r, __LINE__)

/* ---- Maps and helpers, by Linux's numbers ---------------------------------------------------- */

#ifndef __VMLINUX_H__
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
#endif

#ifndef __BPF_HELPERS__
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
#endif

#ifndef NVLANE_LICENSE
#define NVLANE_LICENSE "Dual MIT/GPL"	/* what the loop calls in the kernel is for such programs only */
#endif
char nvlane_license[] SEC("license") = NVLANE_LICENSE;

#endif /* NVLANE_BPF_H */
