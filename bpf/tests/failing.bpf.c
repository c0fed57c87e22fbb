/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* failing: one backend as it is; a write to block 8 stops the kernel's loop with an error, one to block 16 has the
 * driver refuse what is committed. For tests. */
#include "../nvlane_bpf.h"

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE;
	return 0;
}

static __always_inline int as_it_is(struct nvlane_request *r)
{
	if (r->op == NVLANE_FLUSH)
		return 0;
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}

SEC("nvlane/route") int nvlane_route(struct nvlane_request *r)
{
	return as_it_is(r);
}

/* In the kernel it reaches into the loop, as no program may that is not trusted. */
static __always_inline int failing(struct nvlane_request *r)
{
	__u32 key = 0;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);

	if (q && r->op == NVLANE_WRITE && r->start == 8) {
		q->error = NVLANE_ENODATA;
		q->ended++;
	}
	return as_it_is(r);
}

static int (*const nvlane_route_entry)(struct nvlane_request *) = failing;

/* A result too many is committed with that of a write to block 16: the driver refuses the list. */
static __always_inline int spoiling(struct nvlane_request *r)
{
	__u32 key = 0;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);

	if (q && r->op == NVLANE_WRITE && r->start == 16)
		q->gathered++;
	return 0;
}

static int (*const nvlane_done_entry)(struct nvlane_request *) = spoiling;
