/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* zeroing: one backend as it is, but what is discarded becomes zeroes. */
#include "../nvlane_bpf.h"

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

NVLANE_ROUTE(r)
{
	if (r->op == NVLANE_FLUSH)
		return 0;
	return bpf_ublk_queue_sqe(r, 0, r->op == NVLANE_DISCARD ? NVLANE_WRITE_ZEROES : r->op, r->start, r->blocks, 0);
}
