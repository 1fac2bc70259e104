//! This process's memory, read and written by address without the risk of a fault.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::AsRawFd,
};

use crate::abi::{self, MapQuery};

/// Copies memory at `address` into `out`. Returns the number of bytes before the first that is not
/// mapped. An error says nothing about the memory.
///
/// The kernel copies, so that memory which the program unmaps meanwhile ends the copy instead of
/// the process. Other threads may write to the memory at the same time; the bytes are then old or
/// new.
pub fn read(address: u64, out: &mut [u8]) -> io::Result<usize> {
    transfer(address, out.as_mut_ptr(), out.len(), false)
}

/// Copies `data` to memory at `address`. Returns the number of bytes before the first that is not
/// mapped for writing. An error says nothing about the memory.
pub fn write(address: u64, data: &[u8]) -> io::Result<usize> {
    transfer(address, data.as_ptr().cast_mut(), data.len(), true)
}

fn transfer(address: u64, ours: *mut u8, len: usize, to_there: bool) -> io::Result<usize> {
    let mut done = 0;
    while done < len {
        let remote = libc::iovec {
            iov_base: (address + done as u64) as *mut libc::c_void,
            iov_len: len - done,
        };
        let rest = libc::iovec {
            // SAFETY: inside the caller's buffer of `len` bytes.
            iov_base: unsafe { ours.add(done) }.cast(),
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
            return match io::Error::last_os_error().raw_os_error() {
                _ if moved == 0 => Ok(done),
                Some(libc::EFAULT) => Ok(done),
                // A sandbox refuses the call, which says nothing about the memory.
                _ => by_pipe(remote, rest, to_there, io::pipe).map(|moved| done + moved),
            };
        }
        done += moved as usize;
    }
    Ok(done)
}

/// Does what [`transfer`] does by a pipe: its reads and writes check addresses, too. Pieces end at
/// page borders, since a fault may lose the bytes before it in a page.
fn by_pipe(
    there: libc::iovec,
    ours: libc::iovec,
    to_there: bool,
    pipe: impl FnOnce() -> io::Result<(io::PipeReader, io::PipeWriter)>,
) -> io::Result<usize> {
    let (reader, writer) = pipe()?;
    let mut done = 0;
    while done < ours.iov_len {
        let at = there.iov_base as u64 + done as u64;
        let piece = (crate::PAGE_BYTES - at % crate::PAGE_BYTES) as usize;
        let piece = piece.min(ours.iov_len - done);
        // SAFETY: inside the caller's buffer of `ours.iov_len` bytes.
        let our_piece = unsafe { ours.iov_base.byte_add(done) };
        let there = at as *mut libc::c_void;
        let (from, to) = match to_there {
            true => (our_piece, there),
            false => (there, our_piece),
        };
        // SAFETY: one side is in the caller's buffer; the kernel checks the other, which is named
        // by address only. A page fits into an empty pipe.
        let moved = unsafe {
            match libc::write(writer.as_raw_fd(), from, piece) {
                written if written == piece as isize => libc::read(reader.as_raw_fd(), to, piece),
                refused => refused,
            }
        };
        if moved != piece as isize {
            return match io::Error::last_os_error() {
                error if moved < 0 && error.raw_os_error() != Some(libc::EFAULT) => Err(error),
                _ => Ok(done),
            };
        }
        done += piece;
    }
    Ok(done)
}

/// Returns true if another process may map this memory and write to it. Memory that cannot be
/// looked up counts as shared.
pub fn is_shared(start: u64, end: u64) -> bool {
    let mut is_shared = false;
    let looked_up = mappings(start, end, |mapping| {
        is_shared |= mapping.shared;
        true
    });
    is_shared || looked_up.is_none()
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
    let mut found = Protection {
        readable: true,
        writable: true,
    };
    // What was looked up before a failure counts.
    let _ = mappings(start, end, |mapping| {
        found.readable &= mapping.readable;
        found.writable &= mapping.writable;
        true
    });
    found
}

/// Memory that could not be read, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// Nothing is mapped up to this address.
    Unmapped(u64),
    /// The mapping may not be read up to this address.
    Forbidden(u64),
    /// The mapping may be read up to this address: a page has become readable meanwhile, or nothing
    /// is behind it, as behind the end of a file.
    Allowed(u64),
}

/// Says why memory at `start` could not be read, and for how long that holds, to `end` at most.
/// Memory that cannot be looked up counts as allowed.
pub fn unread(start: u64, end: u64) -> Unread {
    let mut found = Unread::Unmapped(end);
    let looked_up = mappings(start, end, |mapping| {
        found = match mapping.readable {
            _ if mapping.start > start => Unread::Unmapped(mapping.start.min(end)),
            true => Unread::Allowed(mapping.end.min(end)),
            false => Unread::Forbidden(mapping.end.min(end)),
        };
        false
    });
    looked_up.map_or(Unread::Allowed(end), |()| found)
}

/// A mapping's place and permissions.
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
    shared: bool,
}

/// Visits the mappings that have pages of a range, until `visit` returns false. Returns `None` if
/// they cannot be looked up.
///
/// A process has many when much of its memory is watched. Linux 6.11 and later find those of a
/// range; before, those below it are read, too.
fn mappings(start: u64, end: u64, mut visit: impl FnMut(Mapping) -> bool) -> Option<()> {
    let maps = File::open("/proc/self/maps").ok()?;
    query(&maps, start, end, &mut visit).or_else(|| list(BufReader::new(&maps), start, end, visit))
}

/// Asks the kernel for the mappings of a range. Returns `None` if it does not know the question.
fn query(maps: &File, start: u64, end: u64, visit: &mut impl FnMut(Mapping) -> bool) -> Option<()> {
    let mut at = start;
    while at < end {
        let mut query = MapQuery {
            size: size_of::<MapQuery>() as u64,
            query_flags: abi::COVERING_OR_NEXT_VMA,
            query_addr: at,
            ..MapQuery::default()
        };
        // SAFETY: the kernel reads and writes this record, whose size is in it.
        let status = unsafe { libc::ioctl(maps.as_raw_fd(), abi::PROCMAP_QUERY, &raw mut query) };
        if status < 0 {
            let is_end = io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
            return is_end.then_some(());
        }
        if query.vma_start >= end || query.vma_end <= at {
            break;
        }
        let has = |flag| query.vma_flags & flag != 0;
        let goes_on = visit(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            readable: has(abi::VMA_READABLE),
            writable: has(abi::VMA_WRITABLE),
            shared: has(abi::VMA_SHARED),
        });
        if !goes_on {
            break;
        }
        at = query.vma_end;
    }
    Some(())
}

/// Reads the list of all mappings, in the order of their addresses, to the end of the range.
fn list(
    maps: impl BufRead,
    start: u64,
    end: u64,
    mut visit: impl FnMut(Mapping) -> bool,
) -> Option<()> {
    for line in maps.split(b'\n') {
        // Names of files are bytes of any kind.
        let line = line.ok()?;
        let (from, to, [read, write, _, shared]) = parse(&String::from_utf8_lossy(&line))?;
        if from >= end {
            break;
        }
        let goes_on = start >= to
            || visit(Mapping {
                start: from,
                end: to,
                readable: read == b'r',
                writable: write == b'w',
                shared: shared == b's',
            });
        if !goes_on {
            break;
        }
    }
    Some(())
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
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_not_mapped_ends_a_copy() {
        let here = [7u8; 64];
        let mut there = [0u8; 64];
        let count = |moved: io::Result<usize>| moved.expect("no error");
        assert_eq!(count(read(here.as_ptr() as u64, &mut there)), 64);
        assert_eq!(there, here);
        assert_eq!(count(read(0x1000, &mut there)), 0);
        assert_eq!(count(write(0x1000, &there)), 0);
    }

    #[test]
    fn memory_that_could_not_be_looked_at_is_an_error() {
        let mut bytes = [0u8; 64];
        let part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let none = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        for to_there in [false, true] {
            let moved = by_pipe(part, part, to_there, none);
            let error = moved.expect_err("no pipe").raw_os_error();
            assert_eq!(error, Some(libc::EMFILE));
        }
    }

    #[test]
    fn what_is_not_mapped_ends_a_copy_by_a_pipe() {
        const PAGE: usize = crate::PAGE_BYTES as usize;
        let memory = pages(4);
        // SAFETY: pages of the mapping, which nobody uses.
        unsafe {
            assert_eq!(libc::munmap(memory.byte_add(3 * PAGE), PAGE), 0);
            let third = memory.byte_add(2 * PAGE);
            assert_eq!(libc::mprotect(third, PAGE, libc::PROT_READ), 0);
        }
        let mut ours: Vec<u8> = (0..4 * PAGE).map(|n| (n % 251) as u8).collect();
        let first = ours.clone();
        let mut moved = |offset: usize, to_there| {
            let there = libc::iovec {
                // SAFETY: an address of the four pages.
                iov_base: unsafe { memory.byte_add(offset) },
                iov_len: 4 * PAGE,
            };
            let ours = libc::iovec {
                iov_base: ours.as_mut_ptr().cast(),
                iov_len: 4 * PAGE,
            };
            by_pipe(there, ours, to_there, io::pipe).expect("a pipe")
        };
        assert_eq!(moved(100, true), 2 * PAGE - 100, "the third can be read");
        assert_eq!(moved(100, false), 3 * PAGE - 100);
        assert_eq!(moved(3 * PAGE, false), 0);
        assert_eq!(ours[..2 * PAGE - 100], first[..2 * PAGE - 100]);
        assert!(
            ours[2 * PAGE - 100..3 * PAGE - 100]
                .iter()
                .all(|byte| *byte == 0)
        );
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(memory, 3 * PAGE) };
    }

    /// Returns new pages that can be read and written.
    fn pages(count: usize) -> *mut libc::c_void {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = count * crate::PAGE_BYTES as usize;
        // SAFETY: a new mapping.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, both, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        memory
    }

    #[test]
    fn mappings_after_a_range_are_not_read() {
        /// Counts the bytes that are read.
        struct Counted<'a>(&'a [u8], &'a Cell<usize>);
        impl io::Read for Counted<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let got = self.0.read(out)?;
                self.1.set(self.1.get() + got);
                Ok(got)
            }
        }
        let line = |n| {
            format!(
                "{:x}-{:x} rw-p 00000000 00:00 0\n",
                n * 0x1000,
                (n + 1) * 0x1000
            )
        };
        let maps: String = (16..10_016).map(line).collect();
        let read = Cell::new(0);
        let reader = BufReader::with_capacity(64, Counted(maps.as_bytes(), &read));
        let mut count = 0;
        let visit = |_| {
            count += 1;
            true
        };
        assert_eq!(list(reader, 0x20_000, 0x22_000, visit), Some(()));
        assert_eq!(count, 2);
        assert!(read.get() < 2_000, "{} bytes of {}", read.get(), maps.len());
    }

    /// On Linux 6.11 and later the kernel finds them.
    #[test]
    fn mappings_are_those_of_the_list() {
        const PAGE: usize = crate::PAGE_BYTES as usize;
        let memory = pages(6);
        for (page, protection) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            // SAFETY: a page of the mapping, which nobody uses.
            let done = unsafe { libc::mprotect(memory.byte_add(page * PAGE), PAGE, protection) };
            assert_eq!(done, 0);
        }
        // SAFETY: a page of the mapping, which nobody uses.
        assert_eq!(unsafe { libc::munmap(memory.byte_add(4 * PAGE), PAGE) }, 0);
        let (start, end) = (memory as u64, memory as u64 + 6 * PAGE as u64);
        let maps = File::open("/proc/self/maps").expect("a list");
        let told = |m: Mapping| (m.readable, m.writable, m.shared);
        let (mut found, mut listed) = (Vec::new(), Vec::new());
        let asked = query(&maps, start, end, &mut |m| {
            found.push(told(m));
            true
        });
        let list_all = |m| {
            listed.push(told(m));
            true
        };
        list(BufReader::new(&maps), start, end, list_all).expect("a list");
        let [all, read, none] = [(true, true), (true, false), (false, false)]
            .map(|(readable, writable)| (readable, writable, false));
        // A neighbour may be part of the last one's mapping.
        assert_eq!(listed, [all, read, none, all, all]);
        assert!(asked.is_none() || found == listed, "{found:?}");
        // SAFETY: the mapping made above; what was removed is not mapped.
        unsafe { libc::munmap(memory, 6 * PAGE) };
    }

    #[test]
    fn why_memory_cannot_be_read_is_said_to_where_that_changes() {
        const PAGE: u64 = crate::PAGE_BYTES;
        let start = pages(6) as u64;
        let at = |page: u64| start + page * PAGE;
        // SAFETY: pages of the mapping, which nobody uses.
        unsafe {
            let (hidden, gone) = (at(1) as *mut libc::c_void, at(4) as *mut libc::c_void);
            assert_eq!(
                libc::mprotect(hidden, 2 * PAGE as usize, libc::PROT_NONE),
                0
            );
            assert_eq!(libc::munmap(gone, PAGE as usize), 0);
        }
        assert_eq!(unread(at(0), at(6)), Unread::Allowed(at(1)));
        assert_eq!(unread(at(1), at(6)), Unread::Forbidden(at(3)));
        assert_eq!(unread(at(2), at(6)), Unread::Forbidden(at(3)));
        assert_eq!(unread(at(1), at(2)), Unread::Forbidden(at(2)));
        assert_eq!(unread(at(4), at(6)), Unread::Unmapped(at(5)));
        assert_eq!(unread(at(4), at(5)), Unread::Unmapped(at(5)));
        // SAFETY: the mapping made above; what was removed is not mapped.
        unsafe { libc::munmap(start as *mut libc::c_void, 6 * PAGE as usize) };
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
