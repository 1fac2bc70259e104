//! Graphs that kernels launch: what the CUDA C++ Programming Guide says of "Device Graph Launch".

use parking_lot::Mutex;

use super::*;
use crate::execution::Execution;

const TAIL: u64 = 0x0100_0000_0000_0000;
const FIRE: u64 = 0x0200_0000_0000_0000;
const SIBLING: u64 = 0x0300_0000_0000_0000;

struct InGraph<F>(F);

impl<F: Fn(&dyn Execution, &AtomicBool) + Send + Sync> Code for InGraph<F> {
    fn name(&self) -> &str {
        "in a graph"
    }

    fn run(&self, _: &Launch, running: &Running<'_>) -> Result<(), Fault> {
        self.0(running.execution.expect("an execution"), running.cancel);
        Ok(())
    }
}

/// Makes a kernel that launches graphs.
fn launching(run: impl Fn(&dyn Execution, &AtomicBool) + Send + Sync + 'static) -> Op {
    Op::Launch(Launch {
        code: Arc::new(InGraph(run)),
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        cooperative: false,
        params: Arc::new([]),
    })
}

impl Bench {
    fn graph_of(&self, ops: Vec<Op>, flags: u64) -> Result<ExecId, Error> {
        let graph = self.gpu.create_graph()?;
        let mut before = Vec::new();
        for op in ops {
            before = vec![self.gpu.add_node(graph, op, &before)?];
        }
        self.gpu.instantiate(self.context, graph, flags)
    }

    fn launchable(&self, ops: Vec<Op>) -> ExecId {
        self.graph_of(ops, BY_KERNELS).unwrap()
    }
}

type Log = Arc<Mutex<Vec<u32>>>;

fn says(log: &Log, what: u32) -> Op {
    let log = log.clone();
    kernel(move |_| {
        log.lock().push(what);
        Ok(())
    })
}

#[test]
fn a_graph_launches_itself_until_it_does_not() {
    let b = bench();
    let stream = b.non_blocking();
    let count = Arc::new(AtomicU64::new(0));
    let (counted, out) = (count.clone(), b.base);
    let again = launching(move |execution, _| {
        if counted.fetch_add(1, Ordering::SeqCst) < 999 {
            assert_eq!(execution.launch(execution.current(), TAIL), 0);
            assert_eq!(execution.launch(execution.current(), TAIL), 401, "twice");
        }
    });
    let exec = b.launchable(vec![again]);
    for round in 1..=2 {
        count.store(0, Ordering::SeqCst);
        b.gpu.launch_graph(exec, stream).unwrap();
        b.set32(stream, out, round);
        b.sync(stream).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1000);
        assert_eq!(b.peek32(out), round);
    }
}

#[test]
fn fired_graphs_run_beside_the_kernel_that_fired_them() {
    let b = bench();
    let stream = b.non_blocking();
    let out = b.base;
    let child = b
        .launchable(vec![kernel(|_| Ok(())), set32(out, 7)])
        .handle();
    let memory = b.gpu.memory().clone();
    let parent = launching(move |execution, cancel| {
        assert_eq!(execution.launch(child, FIRE), 0);
        assert_eq!(execution.launch(child, FIRE), 401, "it runs already");
        execution.start();
        let mut word = [0; 4];
        while word[0] != 7 && !cancel.load(Ordering::SeqCst) {
            memory.read(out, &mut word).unwrap();
            thread::yield_now();
        }
    });
    let exec = b.launchable(vec![parent]);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(out), 7);
}

#[test]
fn an_execution_fires_120_graphs_and_as_many_after_it_launched_itself() {
    let b = bench();
    let stream = b.non_blocking();
    let ended = Arc::new(AtomicU64::new(0));
    let ending = ended.clone();
    let child = b.launchable(vec![kernel(move |_| {
        ending.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })]);
    let (child, rounds, fired) = (child.handle(), AtomicU64::new(0), ended.clone());
    let parent = launching(move |execution, cancel| {
        let round = rounds.fetch_add(1, Ordering::SeqCst);
        for number in 1..=121 {
            // A graph that has just ended may count as running for a moment.
            let mut status = 401;
            while status == 401 && !cancel.load(Ordering::SeqCst) {
                thread::yield_now();
                status = execution.launch(child, FIRE);
            }
            assert_eq!(status, if number <= 120 { 0 } else { 69 });
            execution.start();
        }
        while fired.load(Ordering::SeqCst) < 120 * (round + 1) {
            thread::yield_now();
        }
        if round == 0 {
            assert_eq!(execution.launch(execution.current(), TAIL), 0);
        }
    });
    let exec = b.launchable(vec![parent]);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 240);
}

#[test]
fn tails_follow_in_order_each_with_its_own_first_and_after_what_was_fired() {
    let b = bench();
    let stream = b.non_blocking();
    let log = Log::default();
    let fired = b.launchable(vec![
        kernel(|_| {
            thread::sleep(QUIET);
            Ok(())
        }),
        says(&log, 1),
    ]);
    let inner = b.launchable(vec![says(&log, 3)]).handle();
    let first = b.launchable(vec![
        says(&log, 2),
        launching(move |execution, _| assert_eq!(execution.launch(inner, TAIL), 0)),
    ]);
    let second = b.launchable(vec![says(&log, 4)]);
    let (fired, first, second) = (fired.handle(), first.handle(), second.handle());
    // The host may launch a graph that kernels cannot, and whose kernels launch others.
    let parent = b.graph_of(
        vec![launching(move |execution, _| {
            assert_eq!(execution.current(), 0, "no graph for kernels");
            for (graph, stream) in [(first, TAIL), (second, TAIL), (fired, FIRE)] {
                assert_eq!(execution.launch(graph, stream), 0);
            }
        })],
        0,
    );
    b.gpu.launch_graph(parent.unwrap(), stream).unwrap();
    let end = log.clone();
    b.gpu.submit(stream, says(&end, 5)).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(*log.lock(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_sibling_is_waited_for_by_the_stream_and_not_by_tails() {
    let b = bench();
    let stream = b.non_blocking();
    let (log, opened) = (Log::default(), gate());
    let sibling = b.launchable(vec![gated(&opened), says(&log, 2)]).handle();
    let opens = opened.clone();
    let tail = b.launchable(vec![
        says(&log, 1),
        kernel(move |_| {
            open(&opens);
            Ok(())
        }),
    ]);
    let tail = tail.handle();
    let exec = b.launchable(vec![launching(move |execution, _| {
        assert_eq!(execution.launch(sibling, SIBLING), 0);
        assert_eq!(execution.launch(tail, TAIL), 0);
    })]);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.gpu.submit(stream, says(&log, 3)).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(*log.lock(), [1, 2, 3]);
}

#[test]
fn what_cannot_be_launched_is_an_error() {
    let b = bench();
    let stream = b.non_blocking();
    for op in [Op::Empty, Op::Host(1)] {
        assert!(matches!(
            b.graph_of(vec![op], BY_KERNELS),
            Err(Error::Unsupported(_))
        ));
    }
    let ordinary = b.graph_of(vec![set32(b.base, 1)], 0).unwrap().handle();
    let gone = b.launchable(vec![set32(b.base, 1)]);
    b.gpu.destroy_exec(gone).unwrap();
    let (gone, many) = (gone.handle(), b.launchable(vec![set32(b.base, 1)]).handle());
    let exec = b.launchable(vec![launching(move |execution, _| {
        for (graph, stream) in [(ordinary, FIRE), (gone, TAIL), (0, TAIL), (many, 0)] {
            assert_eq!(execution.launch(graph, stream), 1);
        }
        for number in 1..=256 {
            let status = execution.launch(many, TAIL);
            assert_eq!(status, if number <= 255 { 0 } else { 69 });
        }
    })]);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.sync(stream).unwrap();
}

#[test]
fn a_graph_that_launches_itself_ends_with_its_context() {
    let b = bench();
    let (stream, other) = (b.non_blocking(), b.non_blocking());
    let exec = b.launchable(vec![launching(|execution, _| {
        let _ = execution.launch(execution.current(), TAIL);
    })]);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.gpu.submit(other, faulty()).unwrap();
    let mut end = b.gpu.fence_all();
    wait(&mut end).unwrap();
    assert!(matches!(b.sync(stream), Err(Error::Stuck(_))));
}
