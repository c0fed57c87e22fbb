//! What a block may contain and what may be read of it.

/// A block with one writer, who writes 1, 2, 3 ... and waits for each. Readers are many.
#[derive(Clone, Copy, Debug, Default)]
struct Register {
    /// On the device.
    stored: u64,
    /// The greatest that was acknowledged or read: nothing less may come after.
    floor: u64,
    /// The last that its writer has begun.
    begun: u64,
}

/// The blocks.
#[derive(Debug)]
pub struct Registers(Vec<Register>);

impl Registers {
    pub fn new(count: usize) -> Registers {
        Registers(vec![Register::default(); count])
    }

    /// The writer's next value.
    pub fn next(&mut self, block: usize) -> u64 {
        self.0[block].begun += 1;
        self.0[block].begun
    }

    /// A write is carried out on the device. An error if it undoes what users have seen.
    pub fn store(&mut self, block: usize, value: u64) -> Result<(), String> {
        let register = &mut self.0[block];
        register.stored = value;
        if value < register.floor {
            let floor = register.floor;
            return Err(format!("block {block}: {value} was stored after users had seen {floor}"));
        }
        Ok(())
    }

    /// What the device has now.
    pub fn stored(&self, block: usize) -> u64 {
        self.0[block].stored
    }

    /// What a read that begins now may return at least.
    pub fn floor(&self, block: usize) -> u64 {
        self.0[block].floor
    }

    /// A write was acknowledged.
    pub fn acknowledged(&mut self, block: usize, value: u64) -> Result<(), String> {
        let register = &mut self.0[block];
        register.floor = register.floor.max(value);
        if register.stored < value {
            let stored = register.stored;
            return Err(format!("block {block}: {value} was acknowledged, {stored} is stored"));
        }
        Ok(())
    }

    /// A read that began when `floor` was the least has returned `value`.
    pub fn read(&mut self, block: usize, value: u64, floor: u64) -> Result<(), String> {
        let register = &mut self.0[block];
        let begun = register.begun;
        if value < floor || value > begun {
            return Err(format!("block {block}: {value} was read, may be {floor} to {begun}"));
        }
        register.floor = register.floor.max(value);
        Ok(())
    }

    /// What is missing from the device.
    pub fn lost(&self) -> Vec<String> {
        let numbered = self.0.iter().enumerate();
        let lost = numbered.filter(|(_, register)| register.stored < register.floor);
        lost.map(|(block, Register { stored, floor, .. })| {
            format!("block {block}: {stored} is stored in the end, users had seen {floor}")
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_have_seen_stays() {
        let mut registers = Registers::new(1);
        assert_eq!((registers.next(0), registers.next(0)), (1, 2));
        registers.store(0, 1).unwrap();
        let floor = registers.floor(0);
        registers.store(0, 2).unwrap();
        // While 2 is being written, 1 may be read; but not after 2 was.
        registers.read(0, 1, floor).unwrap();
        registers.read(0, 2, floor).unwrap();
        let floor = registers.floor(0);
        assert!(registers.read(0, 1, floor).is_err(), "back in time");
        assert!(registers.read(0, 3, floor).is_err(), "never written");
        assert!(registers.store(0, 1).is_err(), "a late write");
        assert_eq!(registers.lost().len(), 1);
        registers.store(0, 2).unwrap();
        assert!(registers.lost().is_empty());
    }

    #[test]
    fn what_is_acknowledged_is_stored() {
        let mut registers = Registers::new(1);
        let value = registers.next(0);
        assert!(registers.acknowledged(0, value).is_err());
        registers.store(0, value).unwrap();
        registers.acknowledged(0, value).unwrap();
    }
}
