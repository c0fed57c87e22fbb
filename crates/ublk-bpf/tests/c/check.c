/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The checks of the loop in the kernel (bpf/loop/check.h), run here: cases from standard input, what is said of each to
 * standard output. tests/check.rs compares that with what is said in user space.
 */
#include <stdio.h>
#include <stdlib.h>

#define SEC(name) __attribute__((used))
#define const		/* each case has constants of its own */
#include "loop/loop.bpf.c"
#undef const

struct test_case {
	struct nvlane_loop_config config;
	__u32 blocks;
	__u8 op, phase, is_whole, entry;
	struct nvlane_request r;
};

struct test_answer {
	__s32 wrong;
	__u32 line;
	__u64 delay_ns;
	__u16 parts, result;
	__u32 then;
};

/* What the kernel has for loops. */
int bpf_iter_num_new(struct bpf_iter_num *it, int first, int end)
{
	int *at = (int *)it->opaque;

	at[0] = first - 1;
	at[1] = end;
	return 0;
}

int *bpf_iter_num_next(struct bpf_iter_num *it)
{
	int *at = (int *)it->opaque;

	return ++at[0] < at[1] ? at : 0;
}

void bpf_iter_num_destroy(struct bpf_iter_num *it)
{
	(void)it;
}

/* The loop's, which does not run here, and the program's. */
int nvlane_kernel_route(struct nvlane_request *r)
{
	(void)r;
	abort();
}

int bpf_io_uring_submit_sqes(struct iou_ctx *ring, __u32 count)
{
	(void)ring, (void)count;
	abort();
}

__u8 *bpf_io_uring_get_region(struct iou_ctx *ring, __u32 number, __u64 bytes)
{
	(void)ring, (void)number, (void)bytes;
	abort();
}

int main(void)
{
	static struct test_case it;
	static struct nvlane_flight f;

	while (fread(&it, sizeof(it), 1, stdin) == 1) {
		struct test_answer answer = { 0 };

		__builtin_memcpy((void *)&nvlane_config, &it.config, sizeof(it.config));
		__builtin_memset(&f, 0, sizeof(f));
		f.r = it.r;
		f.blocks = it.blocks;
		f.op = it.op;
		f.phase = it.phase;
		f.is_whole = it.is_whole;
		f.entry = it.entry;
		answer.wrong = nvlane_check(&f);
		answer.line = f.line;
		answer.delay_ns = f.delay_ns;
		answer.parts = f.parts;
		answer.result = f.result;
		answer.then = f.then;
		if (fwrite(&answer, sizeof(answer), 1, stdout) != 1)
			return 1;
	}
	return !feof(stdin) || fflush(stdout);
}
