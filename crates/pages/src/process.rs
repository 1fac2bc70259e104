//! This process's memory, read and written by address without the risk of a fault.

use std::fs;

/// Copies memory at `address` into `out`. Returns the number of bytes before the first that is not
/// mapped.
///
/// The kernel copies, so that memory which the program unmaps meanwhile ends the copy instead of
/// the process. Other threads may write to the memory at the same time; the bytes are then old or
/// new.
pub fn read(address: u64, out: &mut [u8]) -> usize {
    transfer(address, out.as_mut_ptr(), out.len(), false)
}

/// Copies `data` to memory at `address`. Returns the number of bytes before the first that is not
/// mapped for writing.
pub fn write(address: u64, data: &[u8]) -> usize {
    transfer(address, data.as_ptr().cast_mut(), data.len(), true)
}

fn transfer(address: u64, ours: *mut u8, len: usize, to_there: bool) -> usize {
    let local = libc::iovec {
        iov_base: ours.cast(),
        iov_len: len,
    };
    let mut done = 0;
    while done < len {
        let remote = libc::iovec {
            iov_base: (address + done as u64) as *mut libc::c_void,
            iov_len: len - done,
        };
        let rest = libc::iovec {
            // SAFETY: inside the caller's buffer of `len` bytes.
            iov_base: unsafe { local.iov_base.add(done) },
            iov_len: len - done,
        };
        // SAFETY: the local side is the caller's buffer; the kernel checks the other side, which is
        // named by address only.
        let moved = unsafe {
            let process = libc::getpid();
            if to_there {
                libc::process_vm_writev(process, &rest, 1, &remote, 1, 0)
            } else {
                libc::process_vm_readv(process, &rest, 1, &remote, 1, 0)
            }
        };
        if moved <= 0 {
            break;
        }
        done += moved as usize;
    }
    done
}

/// Returns true if another process may map this memory and write to it. Memory that cannot be
/// looked up counts as shared.
pub fn is_shared(start: u64, end: u64) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return true;
    };
    maps.lines().map(parse).any(|line| match line {
        Some((from, to, [.., shared])) => shared == b's' && from < end && start < to,
        None => true,
    })
}

/// Accesses that this process may make to all of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    pub readable: bool,
    pub writable: bool,
}

/// Returns the protection of what is mapped in a range. Memory that cannot be looked up counts as
/// readable and writable.
pub fn protection(start: u64, end: u64) -> Protection {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found = Protection {
        readable: true,
        writable: true,
    };
    let inside = |(from, to, _): &(u64, u64, _)| *from < end && start < *to;
    for (_, _, [read, write, ..]) in maps.lines().filter_map(parse).filter(inside) {
        found.readable &= read == b'r';
        found.writable &= write == b'w';
    }
    found
}

/// First address, end and permissions (`rwxs`): of a line of `/proc/self/maps`.
fn parse(line: &str) -> Option<(u64, u64, [u8; 4])> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes().try_into().ok()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?, permissions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_ends_a_copy() {
        let here = [7u8; 64];
        let mut there = [0u8; 64];
        assert_eq!(read(here.as_ptr() as u64, &mut there), 64);
        assert_eq!(there, here);
        assert_eq!(read(0x1000, &mut there), 0);
        assert_eq!(write(0x1000, &there), 0);
    }

    #[test]
    fn the_stack_is_not_shared() {
        let here = [0u8; 8];
        let start = here.as_ptr() as u64;
        assert!(!is_shared(start, start + 8));
        assert_eq!(
            parse("7f00-7f01 rw-s 00000000 00:01 12 /dev/shm/x"),
            Some((0x7f00, 0x7f01, *b"rw-s"))
        );
    }

    #[test]
    fn the_protection_of_a_range_is_that_of_all_its_parts() {
        const PAGE: usize = crate::PAGE_BYTES as usize;
        // SAFETY: a new mapping.
        let memory = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 3 * PAGE, both, flags, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        for (page, protection) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            // SAFETY: a page of the mapping, which nobody uses.
            let done = unsafe { libc::mprotect(memory.byte_add(page * PAGE), PAGE, protection) };
            assert_eq!(done, 0);
        }
        let start = memory as u64;
        for (pages, readable, writable) in [(1, true, true), (2, true, false), (3, false, false)] {
            let end = start + pages * crate::PAGE_BYTES;
            let expected = Protection { readable, writable };
            assert_eq!(protection(start, end), expected, "{pages} pages");
        }
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(memory, 3 * PAGE) };
    }
}
