/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* thin: four times as large as the smallest of its volumes, new and empty ones each time. A MiB gets a place when it is written first. bpf:thin.bpf.o(a,b) */
#include "nvlane_bpf.h"
#define CHUNK(r) (1u << 20 >> (r)->block_shift)	/* blocks */
#define PLACES (1 << 18)
#define GIVEN(backend) bpf_map_lookup_elem(&places, &(__u32){PLACES + (backend)})
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES + NVLANE_BACKENDS_MAX);
	__type(key, __u32);
	__type(value, __u64);	/* backend << 32 | chunk; 0, the first one, has zeroes for ever */
} places SEC(".maps");		/* behind them, so that one never stays without the other: how many each backend has given */
static __always_inline __s64 room(struct nvlane_request *r, __u32 backend)
{
	__u64 *given = GIVEN(backend);
	return given ? r->backend[backend & (NVLANE_BACKENDS_MAX - 1)].blocks / CHUNK(r) - *given : 0;
}
NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	d->blocks *= 4;
	d->blocks_max = d->blocks_max < CHUNK(d) ? d->blocks_max : CHUNK(d);
	return d->blocks < 4 * CHUNK(d) || d->blocks / CHUNK(d) >= PLACES;
}
NVLANE_ROUTE(r)
{
	__u32 i, index, at, blocks, offset = 0, op = r->op == NVLANE_DISCARD ? NVLANE_WRITE_ZEROES : r->op;
	__u64 *place, where;
	for (i = 0; i < 2 && offset < r->blocks; i++, offset += blocks) {
		index = (r->start + offset) / CHUNK(r);
		at = (r->start + offset) % CHUNK(r);
		blocks = CHUNK(r) - at < r->blocks - offset ? CHUNK(r) - at : r->blocks - offset;
		place = bpf_map_lookup_elem(&places, &index);
		where = place ? *(volatile __u64 *)place : 0;
		if (!where && op == NVLANE_WRITE)
			return nvlane_defer(r);
		bpf_ublk_queue_sqe(r, where >> 32, op, (where & ~0u) * CHUNK(r) + at, blocks, offset);
	}
	return 0;
}

NVLANE_DEFERRED(r)	/* gives what has none a place; queues that do so for the same one at once use up several */
{
	__u64 i, best = 0, mine, *place, *given;
	__u32 index = r->start / CHUNK(r);
	while ((__u64)index * CHUNK(r) < r->start + r->blocks) {
		place = bpf_map_lookup_elem(&places, &index);
		for (i = 0; i < r->backends; i++)
			best = room(r, i) > room(r, best) ? i : best;
		given = GIVEN(best);
		if (!place || !given || (!*place && room(r, best) < 2))
			return nvlane_complete(r, NVLANE_NO_SPACE);
		mine = *place ? 0 : 1 + __sync_fetch_and_add(given, 1);
		if (mine && mine < r->backend[best].blocks / CHUNK(r))
			__sync_val_compare_and_swap(place, 0, best << 32 | mine);
		index += *place != 0;
	}
	return nvlane_route_body(r);
}
