/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * snapshot: backend 0 is never written; what is written goes to backend 1, and a bit per block says that
 * it is there. The bits live as long as the volume is open, or its block device is there. bpf:snapshot.bpf.o(file:base.img?ro,mem:1G)
 */
#include "nvlane_bpf.h"

#define WORDS (1 << 18)		/* 64 bits each: 8 GiB at 512 bytes per block */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WORDS);
	__type(key, __u32);
	__type(value, __u64);
} written SEC(".maps");

NVLANE_SETUP(d)
{
	d->blocks_max = NVLANE_PARTS_MAX;	/* however they alternate, they fit */
	d->flags = NVLANE_ONE_PLACE;		/* for all that is written, the second */
	return d->backends != 2 || d->blocks < d->backend[0].blocks || d->blocks > WORDS * 64ull;
}

NVLANE_ROUTE(r)
{
	__u32 i, index, from = 0, last = 1, is;
	__u64 *word;

	if (r->op == NVLANE_FLUSH)
		return bpf_ublk_queue_sqe(r, 1, r->op, 0, 0, 0);
	if (r->op == NVLANE_DISCARD)
		return bpf_ublk_queue_sqe(r, 1, NVLANE_WRITE_ZEROES, r->start, r->blocks, 0);
	for (i = 0; r->op == NVLANE_READ && i < NVLANE_PARTS_MAX && i < r->blocks; i++) {
		index = (r->start + i) / 64;
		word = bpf_map_lookup_elem(&written, &index);
		is = word ? *word >> (r->start + i) % 64 & 1 : 0;
		if (i && is != last) {
			bpf_ublk_queue_sqe(r, last, r->op, r->start + from, i - from, from);
			from = i;
		}
		last = is;
	}
	return bpf_ublk_queue_sqe(r, last, r->op, r->start + from, r->blocks - from, from);
}

NVLANE_DONE(r)
{
	__u32 i, index;
	__u64 *word;

	if (r->op == NVLANE_READ || r->op == NVLANE_FLUSH || r->status)
		return 0;
	for (i = 0; i < NVLANE_PARTS_MAX && i < r->blocks; i++) {
		index = (r->start + i) / 64;
		if ((word = bpf_map_lookup_elem(&written, &index)))
			__sync_fetch_and_or(word, 1ull << (r->start + i) % 64);
	}
	return 0;
}
