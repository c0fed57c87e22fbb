/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* late: everything goes to the one backend as it is, what is written to block 0 half a second
 * later, what is written to block 8 nine seconds; to block 16 so, again nine later, and seven before it ends. For tests. */
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
	if (r->op == NVLANE_WRITE && !r->start)
		nvlane_delay(r, 500000000);
	if (r->op == NVLANE_WRITE && (r->start == 8 || r->start == 16))
		nvlane_delay(r, 9000000000);
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}

NVLANE_DONE(r)
{
	if (r->op != NVLANE_WRITE || r->start != 16)
		return 0;
	if (!r->state[0]++) {
		nvlane_delay(r, 9000000000);
		return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
	}
	nvlane_delay(r, 7000000000);
	return nvlane_complete(r, r->status);
}
