//! Division as BPF has it: by zero gives zero, the remainder of that is the dividend (RFC 9669, section 4.1).

pub fn div64(a: u64, b: u64) -> u64 {
    a.checked_div(b).unwrap_or(0)
}

pub fn mod64(a: u64, b: u64) -> u64 {
    a.checked_rem(b).unwrap_or(a)
}

pub fn div32(a: u32, b: u32) -> u32 {
    a.checked_div(b).unwrap_or(0)
}

pub fn mod32(a: u32, b: u32) -> u32 {
    a.checked_rem(b).unwrap_or(a)
}

pub fn sdiv64(a: u64, b: u64) -> u64 {
    if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 }
}

pub fn smod64(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }
}

pub fn sdiv32(a: u32, b: u32) -> u32 {
    if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 }
}

pub fn smod32(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 }
}
