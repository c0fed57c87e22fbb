/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * rate: each GiB of the device is limited on its own to PER_SECOND bytes read and written, by holding back
 * what comes too early. bpf:rate.bpf.o(a)
 */
#include "nvlane_bpf.h"

#define PER_SECOND (64ull << 20)
#define BURST_NS 10000000ull	/* may be used up ahead */
#define RANGES 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RANGES);
	__type(key, __u32);
	__type(value, __u64);	/* until when the range's bytes are given away, in ns */
} spent SEC(".maps");

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE | NVLANE_MAPS_MAY_GO;
	return 0;
}

NVLANE_ROUTE(r)
{
	__u32 range = r->start >> (30 - r->block_shift) & (RANGES - 1);
	__u64 now = bpf_ktime_get_ns(), cost, until, old, *place;

	if (r->op == NVLANE_FLUSH)
		return 0;
	place = bpf_map_lookup_elem(&spent, &range);
	if (place && r->op <= NVLANE_READ) {
		cost = ((__u64)r->blocks << r->block_shift) * 1000000000ull / PER_SECOND;
		old = *place;
		if (old < now)	/* it has rested: the past does not count */
			__sync_val_compare_and_swap(place, old, now);
		until = __sync_fetch_and_add(place, cost);
		if (until > now + BURST_NS) {
			until -= now + BURST_NS;
			nvlane_delay(r, until < NVLANE_DELAY_NS_MAX ? until : NVLANE_DELAY_NS_MAX);
		}
	}
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}
