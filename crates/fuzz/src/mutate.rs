//! Inputs: random bytes, and seeds with flipped bits, pieces removed, doubled, swapped or taken
//! from other seeds, and extreme numbers.

/// Length of a random input, at most.
const RANDOM_BYTES_MAX: usize = 4096;
const MUTATIONS_MAX: usize = 8;

/// Inputs of which one is random bytes, if there are seeds.
const RANDOM_ONE_IN: usize = 16;
/// Mutated inputs of which one comes from the seeds that were written by hand, if there is a
/// corpus: it has more inputs than they.
const WRITTEN_ONE_IN: usize = 4;
const PIECE_BYTES_MAX: usize = 64;

pub(crate) struct Mutator<'s> {
    state: u64,
    written: &'s [Vec<u8>],
    corpus: &'s [Vec<u8>],
    input: Vec<u8>,
}

impl<'s> Mutator<'s> {
    pub(crate) fn new(seed: u64, written: &'s [Vec<u8>], corpus: &'s [Vec<u8>]) -> Mutator<'s> {
        Mutator {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            written,
            corpus,
            input: Vec::new(),
        }
    }

    pub(crate) fn next(&mut self) -> &[u8] {
        self.input.clear();
        let seed = self.seed();
        if seed.is_empty() || self.below(RANDOM_ONE_IN) == 0 {
            let len = self.below(RANDOM_BYTES_MAX);
            for _ in 0..len {
                let byte = self.random() as u8;
                self.input.push(byte);
            }
            return &self.input;
        }
        self.input.extend_from_slice(seed);
        for _ in 0..1 + self.below(MUTATIONS_MAX) {
            self.mutate();
        }
        &self.input
    }

    /// Returns a seed to start from, or nothing if there is none.
    fn seed(&mut self) -> &'s [u8] {
        let from_written = self.corpus.is_empty() || self.below(WRITTEN_ONE_IN) == 0;
        let seeds = match from_written && !self.written.is_empty() {
            true => self.written,
            false => self.corpus,
        };
        let at = self.below(seeds.len());
        seeds.get(at).map_or(&[], Vec::as_slice)
    }

    fn mutate(&mut self) {
        if self.input.is_empty() {
            return;
        }
        let at = self.below(self.input.len());
        match self.below(8) {
            0 => self.input[at] ^= 1 << self.below(8),
            1 => self.input[at] = self.random() as u8,
            2 => self.input.truncate(at),
            3 => {
                let end = (at + self.below(PIECE_BYTES_MAX)).min(self.input.len());
                self.input.drain(at..end);
            }
            4 => {
                let end = (at + self.below(PIECE_BYTES_MAX)).min(self.input.len());
                let piece = self.input[at..end].to_vec();
                let to = self.below(self.input.len());
                self.input.splice(to..to, piece);
            }
            5 => {
                // Decoders mostly fail at lengths and offsets.
                let extremes = [
                    0u64,
                    1,
                    0x7f,
                    0xff,
                    0xffff,
                    0x7fff_ffff,
                    0xffff_ffff,
                    u64::MAX,
                ];
                let value = extremes[self.below(extremes.len())].to_le_bytes();
                let width = [1, 2, 4, 8][self.below(4)].min(self.input.len() - at);
                self.input[at..at + width].copy_from_slice(&value[..width]);
            }
            6 => {
                let seed = self.seed();
                let begin = self.below(seed.len());
                let end = (begin + self.below(PIECE_BYTES_MAX)).min(seed.len());
                self.input.splice(at..at, seed[begin..end].iter().copied());
            }
            _ => {
                let other = self.below(self.input.len());
                self.input.swap(at, other);
            }
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random() % bound.max(1) as u64) as usize
    }

    /// xorshift64*
    fn random(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}
