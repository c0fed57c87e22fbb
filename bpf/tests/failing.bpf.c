/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* failing: one backend as it is; a write to block 8 stops the kernel's loop with an error, one to block 16 has the
 * driver refuse what is committed. It reaches queue 0's part of the loop, whichever queue it runs on. For tests. */
#include "../nvlane_bpf.h"
#include "../loop/shared.h"

extern struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nvlane_queue_state);
} nvlane_queues __attribute__((section(".maps")));
enum { NVLANE_ENODATA = 61 };

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
__attribute__((noinline)) int nvlane_kernel_route(struct nvlane_request *r NVLANE_NONNULL)
{
	__u32 key = 0;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);

	if (q && r->op == NVLANE_WRITE && r->start == 8) {
		q->error = NVLANE_ENODATA;
		q->ended++;
	}
	return as_it_is(r);
}

/* A result too many is committed with that of a write to block 16: the driver refuses the list. */
__attribute__((noinline)) int nvlane_kernel_done(struct nvlane_request *r NVLANE_NONNULL)
{
	__u32 key = 0;
	struct nvlane_queue_state *q = bpf_map_lookup_elem(&nvlane_queues, &key);

	if (q && r->op == NVLANE_WRITE && r->start == 16)
		q->gathered++;
	return 0;
}

SEC("nvlane/done") int nvlane_done(struct nvlane_request *r)
{
	return 0;
}
