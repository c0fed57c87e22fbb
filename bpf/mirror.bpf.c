/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mirror: writes go to all backends, reads to the one with the least to do. A read that fails is read from the next; a write that fails
 * anywhere fails, and reads may return its blocks as either backend has them until they are written again. bpf:mirror.bpf.o(a,b)
 */
#include "nvlane_bpf.h"

NVLANE_ROUTE(r)
{
	__u32 i, best = 0;

	if (r->op == NVLANE_FLUSH)
		return 0;
	if (r->op == NVLANE_READ) {
		for (i = 1; i < NVLANE_BACKENDS_MAX && i < r->backends; i++)
			if (r->backend[i].in_flight < r->backend[best & 15].in_flight)
				best = i;
		r->state[0] = best;
		return bpf_ublk_queue_sqe(r, best, r->op, r->start, r->blocks, 0);
	}
	for (i = 0; i < NVLANE_BACKENDS_MAX && i < r->backends; i++)
		bpf_ublk_queue_sqe(r, i, r->op, r->start, r->blocks, 0);
	return 0;
}

NVLANE_DONE(r)
{
	if (!r->status || r->op != NVLANE_READ || r->phase >= r->backends || r->phase >= NVLANE_PHASES_MAX)
		return 0;
	if (++r->state[0] >= r->backends)
		r->state[0] = 0;
	return bpf_ublk_queue_sqe(r, r->state[0], r->op, r->start, r->blocks, 0);
}
