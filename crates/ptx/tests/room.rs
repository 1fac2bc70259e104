//! Kernels that need more of this process's memory than it may use fail alone; kernels of which
//! not all blocks have room at a time run in turn. A process of its own, for the budget is one of
//! the process.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "all/common/mod.rs"]
mod common;

use common::{Arg, Device};
use outboard_budget::CountingAllocator;
use outboard_ptx::{FaultKind, LaunchError, Output as _, Printed, To};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
const BUDGET_BYTES: u64 = 96 << 20;
const MARGIN_BYTES: u64 = 8 << 20;

/// `local`: 500,000 bytes a thread. `waits`: 100,000 bytes a thread, for longer than a time slice.
/// `deep`: 24 calls that need 16,000 bytes a thread each, then a barrier.
const KERNELS: &str = "
    .visible .entry local(.param .u64 out) {
        .local .b8 l[500000]; .reg .b64 %rd<2>; .reg .u32 %r;
        mov.u64 %rd0, l; mov.u32 %r, 1; st.local.u32 [%rd0], %r; ret;
    }
    .visible .entry waits(.param .u64 out) {
        .local .b8 l[100000]; .reg .b64 %rd<4>; .reg .u32 %r<4>; .reg .pred %p;
        mov.u64 %rd0, l; mov.u32 %r0, 0; mov.u32 %r1, %ctaid.x;
        st.local.u32 [%rd0+99996], %r1;
        again: add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, 150000; @%p bra again;
        ld.local.u32 %r2, [%rd0+99996];
        ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
        atom.global.add.u32 %r3, [%rd1], %r2; ret;
    }
    .func down(.param .b32 n) {
        .local .b8 l[16000]; .param .b32 m; .reg .u32 %r; .reg .b64 %rd; .reg .pred %p;
        mov.u64 %rd, l; ld.param.u32 %r, [n]; st.local.u32 [%rd], %r;
        setp.eq.u32 %p, %r, 0; @%p bra bottom;
        sub.u32 %r, %r, 1; st.param.b32 [m], %r; call down, (m); ret;
        bottom: bar.sync 0; ret;
    }
    .visible .entry deep(.param .u64 out) { .param .b32 b; st.param.b32 [b], 24; call down, (b); ret; }
    .visible .entry answer(.param .u64 out) {
        .reg .b64 %rd; ld.param.u64 %rd, [out]; st.global.u32 [%rd], 42; ret;
    }";

fn out_of_memory(outcome: Result<outboard_ptx::Stats, LaunchError>, what: &str) {
    match outcome {
        Err(LaunchError::Fault(fault)) if matches!(fault.kind, FaultKind::OutOfMemory(_)) => {
            let text = fault.to_string();
            assert!(text.contains("it may use 96 MiB"), "{text}");
        }
        other => panic!("{what}: {other:?}"),
    }
    assert!(
        outboard_budget::used() < MARGIN_BYTES + (16 << 20),
        "{what}"
    );
}

/// One test, because the budget is the process's.
#[test]
fn a_kernel_gets_no_more_memory_than_the_process_may_use() {
    outboard_budget::set(BUDGET_BYTES);
    let mut device = Device::new(&format!("{HEADER}{KERNELS}"));
    device.workers = 4;
    let out = device.alloc(4 * 256);
    let args = [Arg::Ptr(out)];
    let local = device.try_run("local", [1; 3], [1024, 1, 1], 0, &args);
    out_of_memory(local, "local memory");
    // 4 MiB a block: 64 of them and four workers would take 1 GiB.
    device.run("waits", 64, 32, &args);
    let sums: Vec<u32> = (0..64).map(|block| 32 * block).collect();
    assert_eq!(device.download::<u32>(out, 64), sums);
    let params = common::params(&args);
    let mut together = device.launch("waits", [64, 1, 1], [32, 1, 1], 0, &params);
    together.cooperative = true;
    out_of_memory(together.run(), "blocks that run together");
    let mut deep = device.launch("deep", [1; 3], [1024, 1, 1], 0, &params);
    deep.stack_bytes = 500_000;
    out_of_memory(deep.run(), "calls");
    device.run("answer", 1, 1, &args);
    assert_eq!(device.download::<u32>(out, 1), [42]);
    // Text for which there is no memory pushes the oldest out.
    device.output.resize(1 << 40);
    let text = vec![b'a'; 1 << 20];
    (0..200).for_each(|_| device.output.write(To::Stdout, &text));
    (0..1 << 20).for_each(|_| device.output.write(To::Stdout, b""));
    assert!(outboard_budget::used() <= BUDGET_BYTES + MARGIN_BYTES);
    device.output.take(&mut Printed::default());
}
