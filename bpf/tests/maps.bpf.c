/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* maps: every kind of map, variables, atomics, calls; each step that is wrong is a bit of state[0], and of `failed`. For tests. */
#include "../nvlane_bpf.h"

struct key { __u32 a; __u16 b; };	/* 8 bytes, 2 of them padding */
struct value { __u64 first; __u32 second; __u8 third[5]; };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 3);
	__type(key, struct key);
	__type(value, struct value);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 5);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 12);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} own SEC(".maps");

__u64 counter;
__u64 failed;
__u32 small = 5;
__u16 half[4] = { 1, 2, 3, 4 };
static const volatile char text[] = "constants are here";
static int bytes[3];

#define CHECK(bit, condition) do { if (!(condition)) wrong |= 1ull << (bit); } while (0)

static __attribute__((noinline)) __u64 sum(const __u16 *numbers, __u32 count)
{
	__u64 total = 0;
	__u32 i;

	for (i = 0; i < count && i < 64; i++)
		total += numbers[i];
	return total;
}

NVLANE_ROUTE(r)
{
	struct key key = {};
	struct value value = { .first = 7, .second = 8, .third = { 1, 2, 3, 4, 5 } }, *found;
	__u64 wrong = 0, *mine, before;
	__u32 i, index, *cell;

	for (i = 0; i < 3; i++) {
		key.a = i;
		key.b = i * 3;
		value.first = 100 + i;
		CHECK(0, bpf_map_update_elem(&hash, &key, &value, BPF_NOEXIST) == 0);
		CHECK(1, bpf_map_update_elem(&hash, &key, &value, BPF_NOEXIST) == -17);
	}
	key.a = 9;
	CHECK(2, bpf_map_update_elem(&hash, &key, &value, BPF_ANY) == -7);
	CHECK(3, bpf_map_update_elem(&hash, &key, &value, BPF_EXIST) == -2);
	CHECK(4, !bpf_map_lookup_elem(&hash, &key));
	CHECK(5, bpf_map_delete_elem(&hash, &key) == -2);
	key.a = 1;
	key.b = 3;
	found = bpf_map_lookup_elem(&hash, &key);
	CHECK(6, found && found->first == 101 && found->second == 8 && found->third[4] == 5);
	if (found)
		found->third[1] = 77;
	found = bpf_map_lookup_elem(&hash, &key);
	CHECK(7, found && found->third[1] == 77 && found->third[0] == 1 && found->third[2] == 3);
	for (i = 0; i < 3; i++) {
		key.a = i;
		key.b = i * 3;
		CHECK(8, bpf_map_delete_elem(&hash, &key) == 0);
	}
	index = 4;
	cell = bpf_map_lookup_elem(&array, &index);
	CHECK(9, cell != 0);
	if (cell) {
		cell[2] = 6;
		CHECK(10, __sync_fetch_and_add(&cell[2], 4) == 6);
		CHECK(11, cell[2] == 10 && cell[1] == 0);
	}
	index = 5;
	CHECK(12, !bpf_map_lookup_elem(&array, &index));
	CHECK(13, bpf_map_update_elem(&array, &index, &value, BPF_ANY) == -7);
	CHECK(14, bpf_map_delete_elem(&array, &index) == -22);
	index = 1;
	mine = bpf_map_lookup_elem(&own, &index);
	CHECK(15, mine != 0);
	if (mine)
		*mine += 1 + bpf_get_smp_processor_id();
	before = __sync_fetch_and_add(&counter, 3);
	CHECK(16, counter == before + 3);
	CHECK(17, __sync_val_compare_and_swap(&counter, before + 3, before) == before + 3);
	CHECK(18, counter == before);
	CHECK(19, __sync_lock_test_and_set(&counter, 50) == before && counter == 50);
	__sync_fetch_and_or(&counter, 8);
	__sync_fetch_and_and(&counter, ~2ull);
	__sync_fetch_and_xor(&counter, 1);
	CHECK(20, counter == ((50 | 8) & ~2 ^ 1));
	CHECK(21, small == 5 && sum(half, 4) == 10);
	half[2] = 30;
	CHECK(22, sum(half, 4) == 37);
	half[2] = 3;
	CHECK(23, text[0] == 'c' && text[17] == 'e');
	bytes[1] = -4;
	CHECK(24, *(volatile int *)&bytes[1] == -4 && *(volatile int *)&bytes[1] / 2 == -2);
	CHECK(25, bpf_ktime_get_ns() == 12345);
	CHECK(26, bpf_get_prandom_u32() != bpf_get_prandom_u32());
	CHECK(27, r->blocks / (r->blocks - r->blocks + small) == r->blocks / 5);
	failed |= wrong;
	r->state[0] = wrong;
	r->state[1] = 1;
	return nvlane_complete(r, NVLANE_OK);
}
