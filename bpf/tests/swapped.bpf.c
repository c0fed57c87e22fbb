/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* swapped: the second half of the one backend, then the first. For tests. */
#include "../nvlane_bpf.h"

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	return d->blocks % 2 ? -1 : 0;
}

NVLANE_ROUTE(r)
{
	__u64 half = r->device_blocks / 2;
	__u32 first = r->blocks;

	if (r->op == NVLANE_FLUSH)
		return 0;
	if (r->start >= half)
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start - half, r->blocks, 0);
	if (first > half - r->start) {
		first = half - r->start;
		bpf_ublk_queue_sqe(r, 0, r->op, 0, r->blocks - first, first);
	}
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start + half, first, 0);
}
