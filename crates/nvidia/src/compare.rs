//! Finds the parts of mirrors that the GPU has changed. The GPU writes without the processor's page
//! tables, so the parts are compared with the bytes that the client knows; several threads compare
//! long ones.

use std::thread;

/// Bytes that justify a further thread, which takes some 30 us to start.
const THREAD_BYTES_MIN: usize = 4 << 20;
const THREADS_MAX: usize = 8;

/// A part of a mirror, and its bytes as the client knows them.
pub(super) struct MirrorPart<'a> {
    /// Index of the watch that it belongs to.
    pub(super) watch: usize,
    /// Offset in the watch's memory.
    pub(super) at: usize,
    pub(super) address: u64,
    pub(super) known: &'a [u8],
}

/// Returns the parts whose memory differs from the known bytes, in order, as watch and offset.
///
/// # Safety
/// Each part's memory must stay mapped until this returns.
pub(super) unsafe fn differing(parts: &[MirrorPart<'_>]) -> Vec<(usize, usize)> {
    let bytes: usize = parts.iter().map(|part| part.known.len()).sum();
    let threads_max = outboard_link::cores::count().min(THREADS_MAX);
    let threads = (bytes / THREAD_BYTES_MIN).clamp(1, threads_max);
    let share = parts.len().div_ceil(threads).max(1);
    let mut shares = parts.chunks(share);
    let own = shares.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| {
                // SAFETY: by the caller's contract the memory is mapped.
                let look = move || unsafe { look(share) };
                // If no thread can be started, this thread does the work.
                let thread = thread::Builder::new().spawn_scoped(scope, look).ok();
                (share, thread)
            })
            .collect();
        // SAFETY: by the caller's contract the memory is mapped.
        let mut found = unsafe { look(own) };
        for (share, thread) in others {
            let theirs = thread.and_then(|thread| thread.join().ok());
            // SAFETY: by the caller's contract the memory is mapped.
            found.extend(theirs.unwrap_or_else(|| unsafe { look(share) }));
        }
        found
    })
}

/// # Safety
/// As for [`differing`].
unsafe fn look(parts: &[MirrorPart<'_>]) -> Vec<(usize, usize)> {
    let differs = |part: &&MirrorPart<'_>| {
        let memory = part.address as *const libc::c_void;
        // SAFETY: by the caller's contract the memory is mapped. No reference is made: the GPU may
        // write meanwhile, and then either result is right.
        unsafe { libc::memcmp(memory, part.known.as_ptr().cast(), part.known.len()) != 0 }
    };
    let found = parts.iter().filter(differs);
    found.map(|part| (part.watch, part.at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_differ_are_found_by_any_number_of_threads() {
        const PART_BYTES: usize = 1 << 20;
        for count in [0, 1, 3, 40] {
            let mut memory = vec![7u8; count * PART_BYTES];
            let known = memory.clone();
            let changed: Vec<usize> = (0..count).step_by(3).collect();
            for part in &changed {
                memory[part * PART_BYTES + 5] = 8;
            }
            let parts: Vec<MirrorPart<'_>> = known
                .chunks(PART_BYTES)
                .enumerate()
                .map(|(i, known)| MirrorPart {
                    watch: 2,
                    at: i * PART_BYTES,
                    address: memory[i * PART_BYTES..].as_ptr() as u64,
                    known,
                })
                .collect();
            // SAFETY: the test owns the memory.
            let found = unsafe { differing(&parts) };
            let wanted: Vec<_> = changed.iter().map(|part| (2, part * PART_BYTES)).collect();
            assert_eq!(found, wanted, "{count} parts");
        }
    }
}
