/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * thin: four times as large as the smallest volume behind it. A chunk of 1 MiB gets its place when it is first written,
 * where most room is: in user space. Volumes begin as zeroes. Places are known as long as the volume is open.
 */
#include "nvlane_bpf.h"

#define CHUNK(r) (1u << 20 >> (r)->block_shift)	/* blocks */
#define ROOM(r, i) ((__s64)((r)->backend[i].blocks / CHUNK(r) - used[i]))
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << 18);
	__type(key, __u32);
	__type(value, __u64);	/* backend << 32 | chunk; 0, the first one, has zeroes for ever */
} places SEC(".maps");
__u64 used[NVLANE_BACKENDS_MAX];

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	d->blocks *= 4;
	d->blocks_max = d->blocks_max < CHUNK(d) ? d->blocks_max : CHUNK(d);
	return d->blocks / CHUNK(d) > 1 << 18;
}

NVLANE_ROUTE(r)
{
	__u32 i, index, at, blocks, offset = 0, op = r->op == NVLANE_DISCARD ? NVLANE_WRITE_ZEROES : r->op;
	__u64 *place;

	for (i = 0; i < 2 && offset < r->blocks; i++, offset += blocks) {
		index = (r->start + offset) / CHUNK(r);
		at = (r->start + offset) % CHUNK(r);
		blocks = CHUNK(r) - at < r->blocks - offset ? CHUNK(r) - at : r->blocks - offset;
		place = bpf_map_lookup_elem(&places, &index);
		if (!place || (!*place && op == NVLANE_WRITE))
			return nvlane_defer(r);
		bpf_ublk_queue_sqe(r, *place >> 32, op, (*place & ~0u) * CHUNK(r) + at, blocks, offset);
	}
	return 0;
}

NVLANE_DEFERRED(r)	/* gives what has none a place; of two queues at the same chunk one is first */
{
	__u64 i, best = 0, mine, *place;
	__u32 index = r->start / CHUNK(r);

	for (; (__u64)index * CHUNK(r) < r->start + r->blocks; index++) {
		for (i = 0; i < r->backends; i++)
			best = ROOM(r, i) > ROOM(r, best) ? i : best;
		place = bpf_map_lookup_elem(&places, &index);
		mine = place && !*place ? 1 + __sync_fetch_and_add(&used[best], 1) : 0;
		if (mine && mine < r->backend[best].blocks / CHUNK(r))
			__sync_val_compare_and_swap(place, 0, best << 32 | mine);
		if (!place || !*place)
			return nvlane_complete(r, NVLANE_NO_SPACE);
	}
	return nvlane_route_body(r);
}
