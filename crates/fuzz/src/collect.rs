//! Makes corpora: keeps the inputs that reach new code, mutates them further, and at the end keeps
//! the fewest and shortest that reach as much.

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use crate::{Until, counters, mutate::Mutator, targets::Target};

/// A longer one is not tried: kept, it would make every try slow.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Tries to make one input shorter.
const TRIM_TRIES_MAX: usize = 200;
/// Tries after which the inputs that were found meanwhile are mutated, too.
const ROUND_TRIES: u64 = 2_000;

/// An input, and the numbers of the counters that it sets.
struct Found {
    input: Vec<u8>,
    reached: Vec<u32>,
}

/// Fuzzes a target with what reaches new code as further seeds, and returns the smallest corpus
/// that reaches as much. It begins with the inputs that there are.
pub(crate) fn collect(
    target: &Target,
    inputs: &[Vec<u8>],
    until: Until,
    seed: u64,
) -> Vec<Vec<u8>> {
    let mut seen = HashSet::new();
    let mut pool = Vec::new();
    for input in target.seeds.iter().chain(inputs) {
        keep_if_new(target, input, &mut seen, &mut pool);
    }
    let begin = Instant::now();
    let (mut tries, mut round) = (0, 0);
    while !until.is_reached(tries, begin) {
        let mut mutator = Mutator::new(seed + round, &target.seeds, &pool);
        let mut fresh = Vec::new();
        let end = tries + ROUND_TRIES;
        while tries < end && !until.is_reached(tries, begin) {
            let input = mutator.next();
            if input.len() <= INPUT_BYTES_MAX {
                keep_if_new(target, input, &mut seen, &mut fresh);
            }
            tries += 1;
        }
        pool.extend(fresh);
        round += 1;
    }
    let corpus = smallest(target, pool);
    println!(
        "{:12} {tries} tries, {} regions reached, {} inputs",
        target.name,
        seen.len(),
        corpus.len()
    );
    corpus
}

fn reached(target: &Target, input: &[u8]) -> Vec<u32> {
    let mut reached = Vec::new();
    counters::during(
        || _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input))),
        |number| reached.push(number as u32),
    );
    reached
}

fn keep_if_new(target: &Target, input: &[u8], seen: &mut HashSet<u32>, pool: &mut Vec<Vec<u8>>) {
    let before = seen.len();
    seen.extend(reached(target, input));
    if seen.len() > before {
        pool.push(input.to_vec());
    }
}

/// Chooses inputs, short ones first, until all that is reached is reached; then makes each shorter.
fn smallest(target: &Target, mut pool: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    // The longest first: what a later, shorter one reaches too, it need not.
    pool.sort_by_key(|input| std::cmp::Reverse(input.len()));
    let mut found: Vec<Found> = pool
        .into_iter()
        .map(|input| Found {
            reached: reached(target, &input),
            input,
        })
        .collect();
    let mut times = vec![0u32; counters::count()];
    for number in found.iter().flat_map(|one| &one.reached) {
        times[*number as usize] += 1;
    }
    found.retain(|one| {
        let is_needed = one.reached.iter().any(|at| times[*at as usize] == 1);
        if !is_needed {
            one.reached.iter().for_each(|at| times[*at as usize] -= 1);
        }
        is_needed
    });
    // Each number is needed of the first input that has it.
    let mut owned = HashSet::new();
    found
        .into_iter()
        .map(|one| {
            let needed: Vec<u32> = one
                .reached
                .into_iter()
                .filter(|at| owned.insert(*at))
                .collect();
            trimmed(target, one.input, &needed)
        })
        .collect()
}

/// Removes pieces of an input, large ones first, as long as it reaches what it is needed for.
fn trimmed(target: &Target, mut input: Vec<u8>, needed: &[u32]) -> Vec<u8> {
    let mut tries = 0;
    let mut piece = input.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < input.len() && tries < TRIM_TRIES_MAX {
            let mut shorter = input.clone();
            shorter.drain(at..(at + piece).min(input.len()));
            let now: HashSet<u32> = reached(target, &shorter).into_iter().collect();
            tries += 1;
            match needed.iter().all(|number| now.contains(number)) {
                true => input = shorter,
                false => at += piece,
            }
        }
        piece /= 2;
    }
    input
}
