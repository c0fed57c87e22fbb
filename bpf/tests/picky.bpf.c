/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* picky: notes what it is asked; of a device of 1024 blocks it has its own mind about four. For tests. */
#include "../nvlane_bpf.h"

#define HAS(r, block) ((r)->start <= (block) && (block) < (r)->start + (r)->blocks)
#define BLOCKS 4
#define BUSIEST 8

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 9);
	__type(key, __u32);
	__type(value, __u64);	/* requests by opcode, blocks by opcode, the most that was in flight at backend 0 */
} notes SEC(".maps");

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

static __always_inline void note(__u32 key, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(&notes, &key);

	if (value)
		__sync_fetch_and_add(value, more);
}

NVLANE_ROUTE(r)
{
	__u32 key = BUSIEST;
	__u64 *busiest = bpf_map_lookup_elem(&notes, &key);

	if (r->op == NVLANE_FLUSH)
		return 0;
	note(r->op & 3, 1);
	note(BLOCKS + (r->op & 3), r->blocks);
	if (busiest && *busiest < r->backend[0].in_flight)
		*busiest = r->backend[0].in_flight;
	if (r->device_blocks == 1024) {
		if (r->op == NVLANE_WRITE && HAS(r, 100))
			return nvlane_complete(r, NVLANE_WRITE_FAULT);
		if (r->op == NVLANE_READ && HAS(r, 200))
			return 5;
		if (r->op == NVLANE_READ && HAS(r, 300))
			return nvlane_complete(r, NVLANE_OK);
		if (r->op == NVLANE_WRITE && HAS(r, 400))
			nvlane_delay(r, 300000000);
	}
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}
