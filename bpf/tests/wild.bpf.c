/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * wild: what hostile does and the kernel refuses before it runs, one thing at a time: whoever checks it writes the number of
 * one of hostile's cases behind "wild ". For tests.
 */
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

/* The verifier knows what constants are, and looks at no other case. */
static const volatile char kind[] = "wild 00";
static volatile __u64 forever = 1;
static volatile long far = 4096;

NVLANE_ROUTE(r)
{
	volatile __u64 here = 0;
	__u32 key = 1;
	__u64 *value;
	char *wild = (char *)&here;

	asm volatile("" : "+r"(wild));	/* the compiler is not to know where it points */
	switch ((kind[5] - '0') * 10 + kind[6] - '0') {
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
		*(volatile char *)&kind = 8;
		return 0;
	case 26:	/* a map that is none */
		return bpf_map_lookup_elem(&key, &key) ? 0 : 0;
	case 27:	/* a key from nowhere */
		return bpf_map_delete_elem(&hash, (void *)~0ull);
	}
	if (r->op == NVLANE_FLUSH)
		return 0;
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}
