//! Finds iterations of a program that marks none, by a call that comes again after always the same
//! number of calls.

use outboard_api::decl::Class;
use outboard_trace::Call;
use rustc_hash::FxHashMap;

use crate::iteration::Span;

/// Iterations that must be seen, at least.
const REPEATS_MIN: usize = 3;
/// Iterations are alike if their number of calls differs from the median's by at most this share.
const CALLS_DIFFER_MAX: f64 = 0.02;
/// Share of all calls that a period must explain, at least.
const COVERAGE_MIN: f64 = 0.5;

pub(crate) struct Found {
    pub(crate) spans: Vec<Span>,
    /// Calls in an iteration, by the median.
    pub(crate) calls: usize,
    pub(crate) coverage: f64,
}

/// Properties by which a call is recognised one iteration later.
#[derive(PartialEq, Eq, Hash)]
struct Likeness {
    function: u32,
    thread: u32,
    stream: u32,
    request_bytes: u64,
    response_bytes: u64,
}

struct Candidate<'a> {
    at: &'a [usize],
    median: usize,
    coverage: f64,
    waits: bool,
}

/// Finds the iterations of `calls`, which are sorted by their starts. The best candidate explains
/// most calls with iterations of equal length; among equals the shortest iteration wins, and then
/// one that ends with a call that waits.
pub(crate) fn find(calls: &[&Call]) -> Option<Found> {
    let mut occurrences: FxHashMap<Likeness, Vec<usize>> = FxHashMap::default();
    for (index, call) in calls.iter().enumerate() {
        let likeness = Likeness {
            function: call.function,
            thread: call.thread,
            stream: call.stream,
            request_bytes: call.request_bytes,
            response_bytes: call.response_bytes,
        };
        occurrences.entry(likeness).or_default().push(index);
    }
    let best = occurrences
        .values()
        .filter_map(|at| candidate(calls, at))
        .filter(|candidate| candidate.coverage >= COVERAGE_MIN)
        .max_by(|a, b| {
            let rank = |c: &Candidate| ((c.coverage * 1e3) as u64, std::cmp::Reverse(c.median));
            (rank(a), a.waits, a.at[0]).cmp(&(rank(b), b.waits, b.at[0]))
        })?;
    let end = |index: usize| {
        calls[index]
            .start_ns
            .saturating_add(calls[index].duration_ns)
    };
    let spans = best
        .at
        .windows(2)
        .filter(|pair| is_like(pair[1] - pair[0], best.median))
        .map(|pair| Span {
            number: 0,
            start_ns: end(pair[0]),
            end_ns: end(pair[1]),
            thread: calls[pair[1]].thread,
        })
        .collect();
    Some(Found {
        spans,
        calls: best.median,
        coverage: best.coverage,
    })
}

fn candidate<'a>(calls: &[&Call], at: &'a [usize]) -> Option<Candidate<'a>> {
    if at.len() <= REPEATS_MIN {
        return None;
    }
    let mut lengths: Vec<usize> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    lengths.sort_unstable();
    let median = lengths[lengths.len() / 2];
    let alike = lengths.iter().filter(|length| is_like(**length, median));
    let (count, explained) = alike.fold((0, 0), |(count, sum), length| (count + 1, sum + length));
    // A single call that repeats is no iteration.
    (count >= REPEATS_MIN && median >= 2).then(|| Candidate {
        at,
        median,
        coverage: explained as f64 / calls.len() as f64,
        waits: calls[at[0]].class == Class::Synchronous,
    })
}

fn is_like(length: usize, median: usize) -> bool {
    length.abs_diff(median) as f64 <= median as f64 * CALLS_DIFFER_MAX
}
