/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* endless: never ends. For tests: the kernel refuses it, the machine in user space ends it. */
#include "../nvlane_bpf.h"

static volatile __u64 forever = 1;

NVLANE_ROUTE(r)
{
	while (forever)
		;
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}
