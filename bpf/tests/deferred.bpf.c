/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * deferred: what NVLANE_DEFERRED decides on, in user space, and all that may be wrong with it, by the number of the first
 * block. For tests.
 *
 *   even chunks of 64 blocks	routed as they are
 *   odd ones			deferred, and what else the run has wanted forgotten
 *   every fourth, from 3 on	when its parts have ended, deferred once more: a write goes to backend 1, too
 *   1024 to 2047		deferred; block 0, 8, ... of a chunk: something is wrong
 *   2048 to 3071		deferred, into as many parts as there may be
 */
#include "../nvlane_bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");	/* routed, deferred, ended, deferred then */

__u64 seen = 7;		/* bits of what was wrong */
volatile __u64 forever = 1;

NVLANE_SETUP(d)
{
	d->blocks_max = 64;
	d->flags = NVLANE_ONE_PLACE | NVLANE_MAPS_MAY_GO;
	seen = 0;
	return d->backends != 2 || d->block_shift != 9;
}

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &which);

	if (value)
		__sync_fetch_and_add(value, 1);
}

NVLANE_ROUTE(r)
{
	__u32 chunk = r->start / 64;

	count(0);
	if (r->op == NVLANE_FLUSH)
		return 0;
	bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
	if (!(chunk & 1) && r->start / 1024 != 1 && r->start / 1024 != 2)
		return 0;
	r->state[0] = r->start + 1;
	nvlane_complete(r, NVLANE_IO_ERROR);
	nvlane_delay(r, NVLANE_DELAY_NS_MAX + 1);
	return nvlane_defer(r);
}

NVLANE_DEFERRED(r)
{
	__u64 i, sum = 0;
	__u32 step;

	count(r->phase ? 3 : 1);
	if (r->place != NVLANE_USER)
		__sync_fetch_and_or(&seen, 1);
	if (r->state[0] != r->start + 1)
		__sync_fetch_and_or(&seen, 2);
	if (r->parts || r->completions || r->delay_ns || r->line)
		__sync_fetch_and_or(&seen, 4);
	if (r->start / 1024 == 1)
		switch (r->start % 64) {
		case 0:
			return nvlane_defer(r);
		case 8:
			return 5;
		case 16:
			return 0;
		case 24:
			return *(volatile __u64 *)(sum + 8);
		case 32:
			while (forever)
				;
		}
	if (r->phase)
		return r->status || r->op != NVLANE_WRITE ? nvlane_complete(r, r->status)
			: bpf_ublk_queue_sqe(r, 1, r->op, r->start, r->blocks, 0);
	/* As many turns as the machine takes, which the kernel's verifier would not. */
	for (i = 0; i < 4000 * forever; i++)
		sum += i ^ r->start;
	step = r->start / 1024 == 2 ? (r->blocks + NVLANE_PARTS_MAX - 1) / NVLANE_PARTS_MAX : r->blocks;
	for (i = 0; i < r->blocks; i += step)
		bpf_ublk_queue_sqe(r, 0, r->op, r->start + i, r->blocks - i < step ? r->blocks - i : step, i);
	return sum == 1;
}

NVLANE_DONE(r)
{
	count(2);
	return r->phase == 1 && r->start / 64 % 4 == 3 && r->op != NVLANE_FLUSH ? nvlane_defer(r) : 0;
}
