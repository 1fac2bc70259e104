//! Frames that are made of parts.

/// Copies `parts`, one after the other, into room of exactly their length.
pub(crate) fn scatter(mut room: &mut [u8], parts: &[&[u8]]) {
    for part in parts {
        let (start, rest) = room.split_at_mut(part.len());
        start.copy_from_slice(part);
        room = rest;
    }
}
