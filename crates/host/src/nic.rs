//! Where in the machine a connection's network interface is.

use std::ffi::CStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Bonds of VLANs of ... : not without end.
const LEVELS_MAX: usize = 4;

/// The NUMA node of the device that has `address`, this end of a connection; none for the loopback
/// interface, and on machines where it makes no difference.
pub(crate) fn numa_node(address: IpAddr) -> Option<u32> {
    node_of(Path::new("/sys/class/net"), &interface_with(address)?, LEVELS_MAX)
}

/// The device's own, or that of what it is made of (bonds, VLANs).
fn node_of(interfaces: &Path, interface: &str, levels: usize) -> Option<u32> {
    let directory = interfaces.join(interface);
    if let Ok(text) = fs::read_to_string(directory.join("device/numa_node")) {
        // -1: none.
        return text.trim().parse().ok();
    }
    let lower = |entry: std::io::Result<fs::DirEntry>| {
        Some(entry.ok()?.file_name().to_str()?.strip_prefix("lower_")?.to_owned())
    };
    let mut lower: Vec<String> = fs::read_dir(directory).ok()?.filter_map(lower).collect();
    lower.sort_unstable();
    let levels = levels.checked_sub(1)?;
    lower.iter().find_map(|interface| node_of(interfaces, interface, levels))
}

/// The name of the interface that has `address`.
fn interface_with(address: IpAddr) -> Option<String> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: it writes one pointer, to a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut found = None;
    let mut at = list;
    while !at.is_null() && found.is_none() {
        // SAFETY: an element of the list, which lives until it is freed; names are terminated.
        unsafe {
            if address_of((*at).ifa_addr) == Some(address.to_canonical()) {
                found = CStr::from_ptr((*at).ifa_name).to_str().ok().map(ToOwned::to_owned);
            }
            at = (*at).ifa_next;
        }
    }
    // SAFETY: it came from `getifaddrs`, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// # Safety
/// `address` is null or points to an address of the length that belongs to its family.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: as the caller promises; the list has them aligned.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::from(Ipv6Addr::from(address.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_address() {
        assert_eq!(interface_with(Ipv4Addr::LOCALHOST.into()).as_deref(), Some("lo"));
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        assert_eq!(interface_with(mapped.into()).as_deref(), Some("lo"));
        assert_eq!(interface_with(Ipv4Addr::new(192, 0, 2, 77).into()), None);
        assert_eq!(numa_node(Ipv4Addr::LOCALHOST.into()), None, "it has no device");
    }

    #[test]
    fn a_bond_is_where_its_members_are() {
        let interfaces = tempfile::tempdir().expect("a directory");
        let put = |place: &str, text: &str| {
            let path = interfaces.path().join(place);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        put("eth0/device/numa_node", "1\n");
        put("eth1/device/numa_node", "-1\n");
        put("bond0/lower_eth1/x", "");
        put("bond0/lower_eth2/x", "");
        put("bond0/lower_eth0/x", "");
        put("vlan7/lower_bond0/x", "");
        put("loop0/lower_loop0/x", "");
        let node = |name| node_of(interfaces.path(), name, LEVELS_MAX);
        assert_eq!((node("eth0"), node("bond0"), node("vlan7")), (Some(1), Some(1), Some(1)));
        assert_eq!((node("eth1"), node("loop0"), node("eth9")), (None, None, None));
    }
}
