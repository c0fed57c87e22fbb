/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* moved: the blocks of the one backend from the last to the first. For tests. */
#include "../nvlane_bpf.h"

NVLANE_SETUP(d)
{
	d->blocks_max = NVLANE_PARTS_MAX;
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

NVLANE_ROUTE(r)
{
	__u32 i;

	if (r->op == NVLANE_FLUSH)
		return 0;
	for (i = 0; i < NVLANE_PARTS_MAX && i < r->blocks; i++)
		bpf_ublk_queue_sqe(r, 0, r->op, r->device_blocks - 1 - r->start - i, 1, i);
	return 0;
}
