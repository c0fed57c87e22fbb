/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * append: what is written goes behind all that was written before, an array knows where, a variable where next.
 * Blocks that were never written are read from the backend's first one. For tests.
 */
#include "../nvlane_bpf.h"

#define BLOCKS 2048
#define AT_ONCE 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BLOCKS);
	__type(key, __u32);
	__type(value, __u32);
} place SEC(".maps");

__u64 used;
__u32 first = 1;

NVLANE_SETUP(d)
{
	d->blocks = BLOCKS;
	d->blocks_max = AT_ONCE;
	d->flags = NVLANE_ONE_PLACE;	/* a block has one at a time */
	return d->backends != 1;
}

NVLANE_ROUTE(r)
{
	__u32 i, index, *at;

	if (r->op == NVLANE_FLUSH)
		return 0;
	if (r->op == NVLANE_DISCARD)
		return nvlane_complete(r, NVLANE_OK);
	for (i = 0; r->op == NVLANE_READ && i < AT_ONCE && i < r->blocks; i++) {
		index = r->start + i;
		at = bpf_map_lookup_elem(&place, &index);
		bpf_ublk_queue_sqe(r, 0, r->op, at ? *at : 0, 1, i);
	}
	if (r->op == NVLANE_READ)
		return 0;
	r->state[0] = first + __sync_fetch_and_add(&used, r->blocks);
	if (r->state[0] + r->blocks > r->backend[0].blocks)
		return nvlane_complete(r, NVLANE_NO_SPACE);
	return bpf_ublk_queue_sqe(r, 0, r->op, r->state[0], r->blocks, 0);
}

NVLANE_DONE(r)
{
	__u32 i, index, *at;

	for (i = 0; r->state[0] && !r->status && i < AT_ONCE && i < r->blocks; i++) {
		index = r->start + i;
		at = bpf_map_lookup_elem(&place, &index);
		if (at)
			*at = r->state[0] + i;
	}
	return 0;
}
