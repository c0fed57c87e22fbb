//! Which pages of the buffer pool are free: power-of-two blocks, coalesced late.

/// Smallest block: one page.
pub const BLOCK_MIN: usize = 4096;
/// Largest block.
pub const BLOCK_MAX: usize = 1 << 20;
/// Block sizes: 4 KiB, 8 KiB, ... 1 MiB.
pub const CLASSES: usize = (BLOCK_MAX / BLOCK_MIN).trailing_zeros() as usize + 1;
/// Pages of a largest block.
const PAGES_MAX: u32 = (BLOCK_MAX / BLOCK_MIN) as u32;

/// Free lists over a region of whole largest blocks. Pages are numbered from the region's start;
/// a block of class `c` has `1 << c` pages and starts at a multiple of that.
///
/// Blocks come back to the list of their class and stay there, so that a steady load splits and
/// merges nothing; buddies are merged only when an allocation would fail otherwise.
pub struct Buddy {
    /// Free blocks by class, the most recently used last. Sized for the worst case beforehand.
    free: [Vec<u32>; CLASSES],
    /// Pages from here to `pages` were never handed out.
    fresh: u32,
    pages: u32,
    free_pages: u32,
    /// Blocks came back since buddies were last merged.
    unmerged: bool,
}

impl Buddy {
    /// Manages `bytes`, rounded down to whole largest blocks.
    pub fn new(bytes: usize) -> Buddy {
        let pages = u32::try_from(bytes / BLOCK_MAX).expect("pool below 4 PiB") * PAGES_MAX;
        let free = std::array::from_fn(|class| Vec::with_capacity((pages >> class) as usize));
        Buddy { free, fresh: 0, pages, free_pages: pages, unmerged: false }
    }

    /// The class whose blocks hold `len` bytes, if any does.
    #[inline]
    pub fn class_of(len: usize) -> Option<usize> {
        if len <= BLOCK_MIN {
            return Some(0);
        }
        (len <= BLOCK_MAX).then(|| (len.next_power_of_two() / BLOCK_MIN).trailing_zeros() as usize)
    }

    /// Bytes not handed out; not all need be to be had in one piece.
    pub fn free_bytes(&self) -> usize {
        self.free_pages as usize * BLOCK_MIN
    }

    /// Bytes managed.
    pub fn bytes(&self) -> usize {
        self.pages as usize * BLOCK_MIN
    }

    /// Takes a block of `class`; returns its first page.
    #[inline]
    pub fn take(&mut self, class: usize) -> Option<u32> {
        let page = match self.free[class].pop() {
            Some(page) => page,
            None => self.take_slowly(class)?,
        };
        self.free_pages -= 1 << class;
        Some(page)
    }

    /// Gives a block back.
    #[inline]
    pub fn put(&mut self, page: u32, class: usize) {
        debug_assert_eq!(page % (1 << class), 0, "blocks are aligned to their size");
        self.free[class].push(page);
        self.free_pages += 1 << class;
        self.unmerged = true;
    }

    #[cold]
    fn take_slowly(&mut self, class: usize) -> Option<u32> {
        if self.free_pages < 1 << class {
            return None;
        }
        if let Some(page) = self.split(class) {
            return Some(page);
        }
        if !self.unmerged {
            return None;
        }
        self.merge();
        self.free[class].pop().or_else(|| self.split(class))
    }

    /// Splits the smallest larger block there is; low halves are used first.
    fn split(&mut self, class: usize) -> Option<u32> {
        let (mut from, page) = (class + 1..CLASSES)
            .find_map(|larger| self.free[larger].pop().map(|page| (larger, page)))
            .or_else(|| self.fresh().map(|page| (CLASSES - 1, page)))?;
        while from > class {
            from -= 1;
            self.free[from].push(page + (1 << from));
        }
        Some(page)
    }

    /// A largest block that was never used.
    fn fresh(&mut self) -> Option<u32> {
        let page = self.fresh;
        (page < self.pages).then(|| self.fresh += PAGES_MAX)?;
        Some(page)
    }

    /// Merges all free buddies, class by class from the smallest, in place.
    fn merge(&mut self) {
        for class in 0..CLASSES - 1 {
            let (small, large) = self.free.split_at_mut(class + 1);
            let (blocks, merged) = (&mut small[class], &mut large[0]);
            // Descending: what remains is then used from low addresses on.
            blocks.sort_unstable_by(|a, b| b.cmp(a));
            let pages = 1 << class;
            let (mut kept, mut next) = (0, 0);
            while next < blocks.len() {
                let high = blocks[next];
                let low_follows = blocks.get(next + 1).is_some_and(|low| low + pages == high);
                if low_follows && high & pages != 0 {
                    merged.push(high - pages);
                    next += 2;
                } else {
                    blocks[kept] = high;
                    kept += 1;
                    next += 1;
                }
            }
            blocks.truncate(kept);
        }
        self.unmerged = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Put(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..=BLOCK_MAX).prop_map(Step::Take),
            1 => Just(Step::Take(BLOCK_MIN)),
            3 => any::<usize>().prop_map(Step::Put),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn blocks_never_overlap_and_all_come_back(steps in prop::collection::vec(step(), 1..600)) {
            let mut buddy = Buddy::new(4 * BLOCK_MAX);
            let mut used = vec![false; buddy.pages as usize];
            let mut held: Vec<(u32, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(len) => {
                        let class = Buddy::class_of(len).expect("within the largest block");
                        prop_assert!(BLOCK_MIN << class >= len);
                        let Some(page) = buddy.take(class) else { continue };
                        prop_assert_eq!(page % (1 << class), 0);
                        for page in page..page + (1 << class) {
                            prop_assert!(!std::mem::replace(&mut used[page as usize], true));
                        }
                        held.push((page, class));
                    }
                    Step::Put(which) if !held.is_empty() => {
                        let (page, class) = held.swap_remove(which % held.len());
                        used[page as usize..][..1 << class].fill(false);
                        buddy.put(page, class);
                    }
                    Step::Put(_) => {}
                }
                let taken = used.iter().filter(|used| **used).count();
                prop_assert_eq!(buddy.free_bytes(), buddy.bytes() - taken * BLOCK_MIN);
            }
            for (page, class) in held {
                buddy.put(page, class);
            }
            // All is whole again: every largest block can be had.
            for _ in 0..4 {
                prop_assert!(buddy.take(CLASSES - 1).is_some());
            }
            prop_assert!(buddy.take(0).is_none());
        }
    }

    #[test]
    fn a_block_fails_only_when_no_run_of_pages_is_free() {
        let mut buddy = Buddy::new(BLOCK_MAX);
        let pages: Vec<u32> = (0..PAGES_MAX).map(|_| buddy.take(0).expect("free")).collect();
        assert!(buddy.take(0).is_none());
        // Every second page free: half the memory, but no two together.
        pages.iter().filter(|page| **page % 2 == 0).for_each(|page| buddy.put(*page, 0));
        assert_eq!(buddy.free_bytes(), BLOCK_MAX / 2);
        assert!(buddy.take(1).is_none());
        buddy.put(1, 0);
        assert_eq!(buddy.take(1), Some(0));
    }

    #[test]
    fn lengths_beyond_the_largest_block_have_no_class() {
        assert_eq!(Buddy::class_of(0), Some(0));
        assert_eq!(Buddy::class_of(4097), Some(1));
        assert_eq!(Buddy::class_of(BLOCK_MAX), Some(CLASSES - 1));
        assert_eq!(Buddy::class_of(BLOCK_MAX + 1), None);
    }
}
