//! Looks up which memory of this process is there, before an adapter's thread uses it.

use std::fs;

/// Returns true if all of these bytes are mapped and readable, and writable if that is asked for.
#[must_use]
pub fn is_mapped(address: usize, bytes: usize, is_written: bool) -> bool {
    let Some(end) = address.checked_add(bytes) else {
        return false;
    };
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    let mut next = address;
    for (start, stop, rights) in maps.lines().filter_map(mapping) {
        let is_usable = rights.starts_with(if is_written { "rw" } else { "r" });
        if is_usable && (start..stop).contains(&next) {
            next = stop;
        }
        if next >= end {
            return true;
        }
    }
    false
}

/// Reads a line of the mappings: their range and rights. They are in ascending order.
fn mapping(line: &str) -> Option<(usize, usize, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, stop) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(stop)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_as_far_as_it_goes() {
        let word = 0u64;
        let here = &raw const word as usize;
        assert!(is_mapped(here, 8, true));
        assert!(is_mapped(is_mapped as *const () as usize, 1, false));
        assert!(!is_mapped(is_mapped as *const () as usize, 1, true));
        assert!(!is_mapped(0x1000, 8, false));
        assert!(!is_mapped(here, 1 << 50, false));
        assert!(!is_mapped(here, usize::MAX, false));
    }
}
