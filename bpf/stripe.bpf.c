/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* stripe: CHUNK bytes on each backend in turn. bpf:stripe.bpf.o(a,b,...) */
#include "nvlane_bpf.h"

#define CHUNK (64 << 10)

NVLANE_SETUP(d)
{
	__u32 chunk = CHUNK >> d->block_shift;

	/* It is the size of the smallest backend so far. */
	d->blocks = d->blocks / chunk * chunk * d->backends;
	d->optimal_blocks = chunk;
	if (d->blocks_max > chunk * (NVLANE_PARTS_MAX - 1))
		d->blocks_max = chunk * (NVLANE_PARTS_MAX - 1);
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

NVLANE_ROUTE(r)
{
	__u32 shift = 16 - r->block_shift, chunk = 1u << shift, inside = r->start & (chunk - 1);
	__u64 number = r->start >> shift;
	__u64 row = number / r->backends;
	__u32 column = number % r->backends;
	__u32 i, n, done = 0;

	if (r->op == NVLANE_FLUSH)
		return 0;
	for (i = 0; i < NVLANE_PARTS_MAX && done < r->blocks; i++) {
		n = r->blocks - done;
		if (n > chunk - inside)
			n = chunk - inside;
		bpf_ublk_queue_sqe(r, column, r->op, (row << shift) + inside, n, done);
		done += n;
		inside = 0;
		if (++column == r->backends) {
			column = 0;
			row++;
		}
	}
	return 0;
}
