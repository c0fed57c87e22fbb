/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* hostile: what a broken or malicious program may do, by the number of the first block. For tests. */
/* MILD leaves out what the kernel refuses before it runs. */
#include "../nvlane_bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, __u64);
} hash SEC(".maps");

#ifndef MILD
static const volatile __u64 constant = 7;
static volatile __u64 forever = 1;
static volatile long far = 4096;

static __attribute__((noinline, optnone)) int deeper(volatile __u64 *depth)
{
	*depth += 1;
	return *depth ? deeper(depth) + 1 : 0;
}
#endif

NVLANE_ROUTE(r)
{
	__u32 i;
	__u64 wide;
#ifndef MILD
	volatile __u64 here = 0;
	__u32 key = 1;
	__u64 *value;
	char *wild = (char *)&here;

	asm volatile("" : "+r"(wild));	/* the compiler is not to know where it points */
#endif

	switch (r->op == NVLANE_READ ? r->start : 0) {
#ifndef MILD
	case 1:		/* endless loop */
		while (forever)
			here++;
		return 0;
	case 2:		/* null pointer */
		return *(volatile int *)0;
	case 3:		/* a number taken for an address */
		*(volatile __u64 *)0xffff888000000000ull = 1;
		return 0;
	case 4:		/* below the stack */
		return *(volatile char *)(wild - far);
	case 5:		/* above it */
		*(volatile __u64 *)(wild + far) = 1;
		return 0;
	case 6:		/* behind the request */
		return ((volatile char *)r)[sizeof(*r)];
	case 7:		/* behind a map's values */
		value = bpf_map_lookup_elem(&array, &key);
		return value ? ((volatile __u64 *)value)[4] : 0;
	case 8:		/* constants */
		*(volatile __u64 *)&constant = 8;
		return 0;
	case 9:		/* endless recursion */
		return deeper(&here);
#endif
	case 10:	/* no action */
		return 0;
	case 11:	/* completed twice */
		nvlane_complete(r, NVLANE_OK);
		return nvlane_complete(r, NVLANE_OK);
	case 12:	/* completed, and a part */
		nvlane_complete(r, NVLANE_OK);
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
	case 13:	/* a backend that is not there */
		return bpf_ublk_queue_sqe(r, 9, r->op, r->start, r->blocks, 0);
	case 14:	/* beyond the backend's end */
		return bpf_ublk_queue_sqe(r, 0, r->op, r->backend[0].blocks, r->blocks, 0);
	case 15:	/* wrong length */
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks + 1, 0);
	case 16:	/* a write into what is to be read */
		return bpf_ublk_queue_sqe(r, 0, NVLANE_WRITE, r->start, r->blocks, 0);
	case 17:	/* blocks left out */
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks - 1, 0);
	case 18:	/* read twice */
		bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, 1, 0);
	case 19:	/* too many parts */
		for (i = 0; i <= NVLANE_PARTS_MAX; i++)
			bpf_ublk_queue_sqe(r, 0, r->op, r->start + i, 1, i);
		return 0;
	case 20:	/* a count that is a lie */
		r->parts = 0xffff;
		return 0;
	case 21:	/* another's status */
		return nvlane_complete(r, 0x371);
	case 22:	/* a year's delay */
		return nvlane_delay(r, 365ull * 86400 * 1000000000);
	case 23:	/* deferred to where it is */
		return nvlane_defer(r);
	case 24:	/* gives up */
		return -5;
	case 25:	/* everything it was given is overwritten; then all is well */
		wide = r->start;
		i = r->blocks;
		r->op = 0x80;
		r->start = r->device_blocks = ~0ull;
		r->blocks = ~0u;
		r->backends = 999;
		r->backend[0].blocks = ~0ull;
		return bpf_ublk_queue_sqe(r, 0, NVLANE_READ, wide, i, 0);
#ifndef MILD
	case 26:	/* a map that is none */
		return bpf_map_lookup_elem(&key, &key) ? 0 : 0;
	case 27:	/* a key from nowhere */
		return bpf_map_lookup_elem(&hash, (void *)~0ull) ? 0 : 0;
#endif
	case 28:	/* more than fits into a map, without harm */
		for (wide = 0; wide < 100; wide++)
			bpf_map_update_elem(&hash, &wide, &wide, BPF_ANY);
		break;
	case 29:	/* never an end of phases */
		break;
	}
	switch (r->op == NVLANE_WRITE ? r->start : 0) {
	case 40:	/* the last block is not written */
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks - 1, 0);
	case 48:	/* one block is written twice, with different data */
		bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks - 1, 0);
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start + r->blocks - 2, 1, r->blocks - 1);
	case 56:	/* the second half first: that is well */
		bpf_ublk_queue_sqe(r, 0, r->op, r->start + r->blocks / 2, r->blocks - r->blocks / 2, r->blocks / 2);
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks / 2, 0);
	case 64:	/* the last block is beyond the backend's end */
		return bpf_ublk_queue_sqe(r, 0, r->op, r->backend[0].blocks - r->blocks + 1, r->blocks, 0);
	}
	if (r->op == NVLANE_FLUSH)
		return 0;
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}

NVLANE_DONE(r)
{
	if (r->op == NVLANE_READ && r->start == 29)
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
	return 0;
}
