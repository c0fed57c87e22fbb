/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * scattered: three blocks on each backend in turn, the later ones before the earlier, told from the last to the first. Of
 * one in twenty a second copy is written, which nobody reads: a write that goes to two places. For tests.
 */
#include "../nvlane_bpf.h"

#define CHUNK 3
#define BLOCKS_MAX 12	/* five chunks at most, of which one may be written twice */

NVLANE_SETUP(d)
{
	__u64 rows = d->blocks / CHUNK;

	if (rows < 2)
		return 1;
	d->blocks = (rows - 1) * CHUNK * d->backends;	/* the first row has the second copies */
	if (d->blocks_max > BLOCKS_MAX)
		d->blocks_max = BLOCKS_MAX;
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

NVLANE_ROUTE(r)
{
	__u64 rows = r->device_blocks / (CHUNK * r->backends), last, chunk;
	__u32 i, n, left = r->blocks, inside, backend;

	if (r->op == NVLANE_FLUSH)
		return 0;
	for (i = 0; i < BLOCKS_MAX && left > 0; i++) {
		last = r->start + left - 1;
		chunk = last / CHUNK;
		n = last % CHUNK + 1;
		if (n > left)
			n = left;
		left -= n;
		inside = last % CHUNK + 1 - n;
		backend = chunk % r->backends;
		bpf_ublk_queue_sqe(r, backend, r->op, (rows - chunk / r->backends) * CHUNK + inside, n, left);
		if (r->op == NVLANE_WRITE && chunk % 20 == 4)
			bpf_ublk_queue_sqe(r, backend, r->op, inside, n, left);
	}
	return 0;
}
