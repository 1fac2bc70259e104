//! Random programs of many streams, checked against CUDA's rules of order.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;

/// The kernels that must be done before a kernel begins.
type Before = BTreeMap<usize, Vec<usize>>;

/// A random generator of our own, so that a seed always gives the same program (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Whether a stream waits for the null stream. Stream 0 is the null stream, odd ones are blocking,
/// other even ones are not.
fn interacts_with_legacy(stream: usize) -> bool {
    stream % 2 == 1
}

/// Runs a program of `steps` steps. Returns the order in which kernels began and ended, and the
/// kernels that had to come before each.
fn run(seed: u64, steps: usize) -> (Vec<(usize, bool)>, Before) {
    const STREAMS: usize = 6;
    const EVENTS: usize = 4;
    let b = bench();
    let mut streams = vec![b.legacy()];
    for number in 1..STREAMS {
        streams.push(if interacts_with_legacy(number) {
            b.blocking()
        } else {
            b.non_blocking()
        });
    }
    let events: Vec<EventId> = (0..EVENTS).map(|_| b.event()).collect();
    let mut random = Random(seed);
    let log = Arc::new(Mutex::new(Vec::new()));
    // The model: the kernels that the next kernel of a stream waits for, and those that an event
    // covers.
    let mut pending: Vec<Vec<usize>> = vec![Vec::new(); STREAMS];
    let mut recorded: Vec<Vec<usize>> = vec![Vec::new(); EVENTS];
    let mut before = Before::new();
    for step in 0..steps {
        let stream = random.below(STREAMS);
        let event = random.below(EVENTS);
        // Work of the null stream waits for all blocking streams, and they wait for it.
        let mut deps = pending[stream].clone();
        for other in (0..STREAMS).filter(|o| *o != stream) {
            let tied = stream == 0 && interacts_with_legacy(other)
                || other == 0 && interacts_with_legacy(stream);
            if tied {
                deps.extend(&pending[other]);
            }
        }
        match random.below(4) {
            0 => {
                b.gpu
                    .submit(streams[stream], Op::RecordEvent(events[event]))
                    .unwrap();
                recorded[event] = deps.clone();
                pending[stream] = deps;
            }
            1 => {
                b.gpu
                    .submit(streams[stream], Op::WaitEvent(events[event]))
                    .unwrap();
                deps.extend(&recorded[event]);
                pending[stream] = deps;
            }
            _ => {
                let (log, pause) = (log.clone(), random.below(200) as u64);
                let work = kernel(move |_| {
                    log.lock().push((step, true));
                    thread::sleep(Duration::from_micros(pause));
                    log.lock().push((step, false));
                    Ok(())
                });
                b.gpu.submit(streams[stream], work).unwrap();
                before.insert(step, deps);
                pending[stream] = vec![step];
            }
        }
    }
    wait(&mut b.gpu.context_fence(b.context).unwrap()).unwrap();
    let log = log.lock().clone();
    (log, before)
}

#[test]
fn random_programs_keep_the_order_of_streams_and_events() {
    for seed in 1..=5 {
        let (log, before) = run(seed, 120);
        let at = |step: usize, begins: bool| log.iter().position(|entry| *entry == (step, begins));
        assert_eq!(log.len(), 2 * before.len(), "seed {seed}");
        for (step, deps) in &before {
            for dep in deps {
                assert!(
                    at(*dep, false) < at(*step, true),
                    "seed {seed}: {step} began before {dep} was done"
                );
            }
        }
    }
}
