//! Words of memory that both ends write: those that one end has changed, and has to send.

/// Unit of a change, in bytes.
const WORD_BYTES: usize = 4;

/// Reports runs of words that differ from what the other end knows: address and new bytes.
///
/// Never those between: the other end may have changed them, in a message that has not arrived yet,
/// and would take the old words for changes.
pub fn changed_words(va: u64, known: &[u8], now: &[u8], changed: &mut dyn FnMut(u64, &[u8])) {
    let mut run: Option<(usize, usize)> = None;
    for at in (0..now.len()).step_by(WORD_BYTES) {
        let end = (at + WORD_BYTES).min(now.len());
        if known[at..end] == now[at..end] {
            continue;
        }
        run = match run {
            Some((start, last)) if at == last => Some((start, end)),
            Some((start, last)) => {
                changed(va + start as u64, &now[start..last]);
                Some((at, end))
            }
            None => Some((at, end)),
        };
    }
    if let Some((start, end)) = run {
        changed(va + start as u64, &now[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_words_are_reported_and_nothing_between_them() {
        let known = [0; 30];
        let mut now = known;
        for at in [5, 8, 20, 29] {
            now[at] = 1;
        }
        let mut runs = Vec::new();
        changed_words(100, &known, &now, &mut |va, bytes| {
            runs.push((va, bytes.len()));
        });
        assert_eq!(runs, [(104, 8), (120, 4), (128, 2)]);
    }
}
