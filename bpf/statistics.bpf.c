/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* statistics: counts what passes, by operation and by latency. bpf:statistics.bpf.o(a); nvlane bpf stat */
#include "nvlane_bpf.h"

struct operation {
	__u64 requests, blocks, failures, ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 16);	/* by opcode */
	__type(key, __u32);
	__type(value, struct operation);
} operations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);	/* by the logarithm of nanoseconds to the base 2 */
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

NVLANE_SETUP(d)
{
	d->flags = NVLANE_ONE_PLACE | NVLANE_MAPS_MAY_GO;
	return 0;
}

NVLANE_ROUTE(r)
{
	r->state[0] = bpf_ktime_get_ns();
	if (r->op == NVLANE_FLUSH)
		return 0;
	return bpf_ublk_queue_sqe(r, 0, r->op, r->start, r->blocks, 0);
}

NVLANE_DONE(r)
{
	__u64 ns = bpf_ktime_get_ns() - r->state[0], rest = ns, *latency;
	__u32 op = r->op & 15, log = 0, step;
	struct operation *operation = bpf_map_lookup_elem(&operations, &op);

	for (step = 32; step; step >>= 1)
		if (rest >> step) {
			rest >>= step;
			log += step;
		}
	latency = bpf_map_lookup_elem(&latencies, &log);
	if (!operation || !latency)
		return 0;
	/* A sleepable program may be preempted by another queue's between its reading and its writing. */
	__sync_fetch_and_add(&operation->requests, 1);
	__sync_fetch_and_add(&operation->blocks, r->blocks);
	__sync_fetch_and_add(&operation->failures, r->status != 0);
	__sync_fetch_and_add(&operation->ns, ns);
	__sync_fetch_and_add(latency, 1);
	return 0;
}
