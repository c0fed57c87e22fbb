/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * check.h: whether what a program wants can be done, in the kernel. Included by loop.bpf.c.
 *
 * The same as crates/bpf/src/actions.rs (crates/ublk-bpf/tests/check.rs holds it to that), numbered as in src/mistakes.rs there.
 */
#ifndef NVLANE_CHECK_H
#define NVLANE_CHECK_H

static __always_inline int nvlane_wrong(struct nvlane_flight *f, __u32 kind, __u32 first, __u32 second, __u32 line)
{
	f->line = line;
	return kind | first << 8 | second << 16;
}

/* Parts that do not simply follow one another: nothing is left out, nothing is read twice. */
NVLANE_GLOBAL int nvlane_kernel_cover(struct nvlane_flight *f NVLANE_NONNULL)
{
	__u32 i, j, parts = f->parts, covered = 0, sum = 0, before;
	struct nvlane_part *a, *b;

	if (f->op == NVLANE_READ) {
		NVLANE_EACH(i, 0, NVLANE_PARTS_MAX) {
			if (i >= parts)
				break;
			a = &f->r.part[i];
			sum += a->blocks;
			NVLANE_EACH(j, 0, NVLANE_PARTS_MAX) {
				if (j >= i)
					break;
				b = &f->r.part[j];
				if (b->offset < a->offset + a->blocks && a->offset < b->offset + b->blocks)
					return NVLANE_READ_TWICE;
			}
		}
		return sum < f->blocks && !f->is_whole ? NVLANE_MISSING : 0;
	}
	NVLANE_EACH(i, 0, NVLANE_PARTS_MAX) {
		if (i >= parts)
			break;
		before = covered;
		NVLANE_EACH(j, 0, NVLANE_PARTS_MAX) {
			if (j >= parts)
				break;
			b = &f->r.part[j];
			if (b->offset <= covered && b->offset + b->blocks > covered)
				covered = b->offset + b->blocks;
		}
		if (covered == before)
			break;
	}
	return covered < f->blocks && !f->is_whole ? NVLANE_MISSING : 0;
}

/* No two parts write to the same place. */
NVLANE_GLOBAL int nvlane_kernel_places(struct nvlane_flight *f NVLANE_NONNULL)
{
	__u32 i, j, parts = f->parts;
	struct nvlane_part *a, *b;

	NVLANE_EACH(i, 1, NVLANE_PARTS_MAX) {
		if (i >= parts)
			break;
		a = &f->r.part[i];
		NVLANE_EACH(j, 0, NVLANE_PARTS_MAX) {
			if (j >= i)
				break;
			b = &f->r.part[j];
			if (a->backend == b->backend && b->block < a->block + a->blocks
			    && a->block < b->block + b->blocks)
				return nvlane_wrong(f, NVLANE_OVERLAP, j, i, a->line);
		}
	}
	return 0;
}

NVLANE_GLOBAL int nvlane_kernel_parts(struct nvlane_flight *f NVLANE_NONNULL)
{
	__u32 i, parts = f->parts, next = 0, follows = 1, line = 0;
	__u32 asked = f->blocks, op = f->op;
	struct nvlane_part *p;
	int wrong;

	NVLANE_EACH(i, 0, NVLANE_PARTS_MAX) {
		if (i >= parts)
			break;
		p = &f->r.part[i];
		line = p->line;
		if (p->backend >= nvlane_config.backends)
			return nvlane_wrong(f, NVLANE_NO_BACKEND, i, 0, line);
		if (p->op != op && !(p->op == NVLANE_WRITE_ZEROES && op == NVLANE_DISCARD))
			return nvlane_wrong(f, NVLANE_WRONG_OPERATION, i, 0, line);
		if (op == NVLANE_FLUSH) {
			if (p->block || p->blocks || p->offset)
				return nvlane_wrong(f, NVLANE_WRONG_LENGTH, i, 0, line);
			continue;
		}
		if (!p->blocks || p->blocks > asked || p->offset > asked - p->blocks)
			return nvlane_wrong(f, NVLANE_WRONG_LENGTH, i, 0, line);
		if (p->blocks > nvlane_config.sizes[p->backend & (NVLANE_BACKENDS_MAX - 1)]
		    || p->block > nvlane_config.sizes[p->backend & (NVLANE_BACKENDS_MAX - 1)] - p->blocks)
			return nvlane_wrong(f, NVLANE_BEYOND_BACKEND, i, 0, line);
		follows &= p->offset == next;
		next = p->offset + p->blocks;
	}
	if (op == NVLANE_FLUSH || op == NVLANE_DISCARD)
		return 0;
	if (!follows || next != asked) {
		wrong = nvlane_kernel_cover(f);
		if (wrong)
			return nvlane_wrong(f, wrong, 0, 0, line);
	}
	return parts > 1 && op != NVLANE_READ ? nvlane_kernel_places(f) : 0;
}

/* What a run has left in the request: noted in the flight, or the number of what is wrong. */
static __always_inline int nvlane_check(struct nvlane_flight *f)
{
	struct nvlane_request *r = &f->r;
	__u32 line = r->line, status = r->result;

	if (r->deferred) {
		if (!nvlane_config.defers || f->entry == NVLANE_IN_DEFERRED)
			return nvlane_wrong(f, NVLANE_NOBODY_TAKES_IT, 0, 0, line);
		f->then = NVLANE_THEN_DEFER;
		return 0;
	}
	if (r->overflow || r->parts > NVLANE_PARTS_MAX)
		return nvlane_wrong(f, NVLANE_TOO_MANY_PARTS, 0, 0, line);
	if (r->delay_ns > NVLANE_DELAY_NS_MAX)
		return nvlane_wrong(f, NVLANE_LONG_DELAY, 0, 0, line);
	f->delay_ns = r->delay_ns;
	f->parts = r->parts;
	if (r->completions > 1)
		return nvlane_wrong(f, NVLANE_COMPLETED_TWICE, 0, 0, line);
	if (r->completions) {
		if (f->parts)
			return nvlane_wrong(f, NVLANE_COMPLETED_WITH_PARTS, 0, 0, line);
		if (status != NVLANE_OK && status != NVLANE_IO_ERROR && status != NVLANE_READ_ONLY
		    && status != NVLANE_NO_SPACE && status != NVLANE_WRITE_FAULT && status != NVLANE_READ_ERROR)
			return nvlane_wrong(f, NVLANE_WRONG_STATUS, 0, 0, line);
		f->result = status;
		f->then = NVLANE_THEN_END;
		return 0;
	}
	if (!f->parts) {
		f->then = NVLANE_THEN_NOTHING;
		if (!f->phase && f->op != NVLANE_FLUSH)
			return nvlane_wrong(f, NVLANE_NOTHING, 0, 0, line);
		return 0;
	}
	if (f->phase >= NVLANE_PHASES_MAX)
		return nvlane_wrong(f, NVLANE_TOO_MANY_PHASES, 0, 0, line);
	f->then = NVLANE_THEN_PARTS;
	return nvlane_kernel_parts(f);
}

#endif /* NVLANE_CHECK_H */
