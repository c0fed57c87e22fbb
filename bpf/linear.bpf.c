/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* linear: one backend after another. bpf:linear.bpf.o(a,b,...) */
#include "nvlane_bpf.h"

NVLANE_SETUP(d)
{
	__u32 i;

	d->blocks = 0;
	for (i = 0; i < NVLANE_BACKENDS_MAX && i < d->backends; i++)
		d->blocks += d->backend[i].blocks;
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

NVLANE_ROUTE(r)
{
	__u64 at = r->start, size;
	__u32 i, n, done = 0;

	if (r->op == NVLANE_FLUSH)
		return 0;
	for (i = 0; i < NVLANE_BACKENDS_MAX && done < r->blocks; i++) {
		size = r->backend[i].blocks;
		if (at >= size) {
			at -= size;
			continue;
		}
		n = r->blocks - done;
		if (n > size - at)
			n = size - at;
		bpf_ublk_queue_sqe(r, i, r->op, at, n, done);
		done += n;
		at = 0;
	}
	return 0;
}
