//! Fuzz targets: a peer whose adapter writes arbitrary bytes with valid checks into our ring, and
//! arbitrary setup messages.

use std::{
    hint,
    sync::{Arc, atomic::Ordering},
};

use outboard_verbs::Memory;
use outboard_wire::limits::FRAME_BYTES_MAX;

use super::{
    check,
    control::{CONTROL_BYTES, Control},
    layout::{CHECKED_BYTES_MAX, HEADER_BYTES, SEPARATE},
    ring::{Consumer, Found, Op, Port},
    setup::{self, SETUP_BYTES},
};
use crate::Error;

/// Smaller than any ring in use, so that a fuzzer reaches all of it.
const RING_BYTES: usize = 64 << 10;

/// A device that ignores every request.
struct Nowhere;

impl Port for Nowhere {
    fn post(&mut self, _: &[Op], _: bool, _: bool, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn done(&self) -> u64 {
        0
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Receives frames of the lengths in `data`, four bytes each, one after the other, from a ring that
/// also holds `data`.
///
/// # Panics
///
/// If something is handed out that breaks a promise of the link.
pub fn fuzz_ring(data: &[u8]) {
    let (Ok(ring), Ok(words)) = (Memory::new(RING_BYTES), Memory::new(CONTROL_BYTES)) else {
        return;
    };
    let ring = Arc::new(ring);
    for (at, chunk) in data.chunks_exact(8).take(RING_BYTES / 8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        ring.word(8 * at)
            .store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    let mut consumer = Consumer::new(Nowhere, Control::new(Arc::new(words), 0), Arc::clone(&ring));
    for said in data.chunks_exact(4) {
        let mut len = [0; 4];
        len.copy_from_slice(said);
        let len = u32::from_le_bytes(len);
        let position = consumer.position();
        let offset = position as usize & (RING_BYTES - 1);
        let header = u64::from(len) | u64::from(check::tag(position)) << 32;
        // A length that announces separate data is a length, too.
        let covered = match (len & !SEPARATE) as usize {
            len @ 1..=CHECKED_BYTES_MAX => len.next_multiple_of(16),
            _ => 0,
        };
        let body = offset + HEADER_BYTES;
        let covered = if body + covered <= RING_BYTES {
            covered
        } else {
            0
        };
        ring.word(offset).store(header, Ordering::Relaxed);
        let sum = check::of_frame(position, header, &ring, body, covered);
        ring.word(offset + 8).store(sum, Ordering::Relaxed);
        match consumer.look() {
            Ok(Found::Frame {
                offset,
                len,
                footprint,
                separate,
            }) => {
                assert!((1..=FRAME_BYTES_MAX).contains(&len));
                assert!(separate.is_none_or(|data| (1..=FRAME_BYTES_MAX).contains(&data.len)));
                let mut bytes = Vec::new();
                consumer.copy(offset, len, &mut bytes);
                // Touches every byte, so that an invalid one is found.
                hint::black_box(
                    bytes
                        .iter()
                        .fold(0, |sum: u8, byte| sum.wrapping_add(*byte)),
                );
                assert!(consumer.take(footprint).is_ok());
            }
            // Skipped to the beginning, or not believed.
            Ok(Found::Nothing) => {}
            Ok(Found::End) | Err(_) => return,
        }
    }
}

/// Decodes a setup message.
///
/// # Panics
///
/// If one is accepted that breaks a rule.
pub fn fuzz_setup(data: &[u8]) {
    let mut bytes = [0; SETUP_BYTES];
    let len = data.len().min(SETUP_BYTES);
    bytes[..len].copy_from_slice(&data[..len]);
    if let Ok(setup) = setup::decode(&bytes) {
        assert!(setup.ring.bytes.is_power_of_two());
        assert!(setup.ring.address.checked_add(setup.ring.bytes).is_some());
        assert!(
            setup
                .control
                .address
                .checked_add(setup.control.bytes)
                .is_some()
        );
        assert_eq!(setup::decode(&setup::encode(Ok(&setup))).ok(), Some(setup));
    }
}

/// A message to start from.
pub fn setup_seed() -> Vec<u8> {
    setup::encode(Ok(&setup::example())).to_vec()
}
