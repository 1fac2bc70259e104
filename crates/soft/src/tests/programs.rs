//! Behaviour of well-formed programs.

use outboard_api::enums::*;
use outboard_device::Printed;
use outboard_wire::doc::{self, KernelWork, NodeWork};

use super::*;

#[test]
fn a_vector_is_added() {
    let mut c = client();
    let kernel = c.kernels();
    let n = 1000u32;
    let (a, b, out) = (c.base, c.base + 4096, c.base + 8192);
    c.write_words(a, &(0..n).collect::<Vec<_>>());
    c.write_words(b, &(0..n).map(|i| 10 * i).collect::<Vec<_>>());
    let arguments = params(&[a, b, out, u64::from(n)]);
    c.done(Request::Launch(launch(
        kernel("vector_add"),
        n.div_ceil(128),
        128,
        &arguments,
    )));
    assert_eq!(
        c.read_words(out, n as usize),
        (0..n).map(|i| 11 * i).collect::<Vec<_>>()
    );
    c.sync().unwrap();
}

#[test]
fn streams_and_events() {
    let mut c = client();
    let kernel = c.kernels();
    let (one, two, start, end) = (c.mint(), c.mint(), c.mint(), c.mint());
    for stream in [one, two] {
        let flags = CU_STREAM_NON_BLOCKING;
        let priority = -3;
        c.done(Request::StreamCreate(m::StreamCreate {
            stream,
            flags,
            priority,
        }));
    }
    for event in [start, end] {
        c.done(Request::EventCreate(m::EventCreate { event, flags: 0 }));
    }
    c.write_words(c.base, &[0]);
    c.sync().unwrap();
    let arguments = params(&[c.base]);
    let record = |event, stream| {
        Request::EventRecord(m::EventRecord {
            event,
            stream,
            flags: 0,
        })
    };
    c.done(record(start, one));
    for _ in 0..10 {
        let mut increment = launch(kernel("increment"), 4, 32, &arguments);
        increment.stream = one;
        c.done(Request::Launch(increment));
    }
    c.done(record(end, one));
    c.done(Request::StreamWaitEvent(m::StreamWaitEvent {
        stream: two,
        event: end,
        flags: 0,
    }));
    let fetch = m::CopyOut {
        src: c.base,
        len: 4,
        stream: two,
    };
    assert_eq!(
        c.wait(Request::CopyOut(fetch)).unwrap(),
        1280u32.to_le_bytes()
    );
    c.wait(Request::FenceEvent(m::FenceEvent { event: end }))
        .unwrap();
    let elapsed: m::EventElapsedReply =
        c.ask(Request::EventElapsed(m::EventElapsed { start, end }));
    assert!(elapsed.milliseconds > 0.0);
    c.wait(Request::FenceStream(m::FenceStream {
        stream: one,
        slot: 0,
        value: 0,
    }))
    .unwrap();
    c.done(Request::StreamDestroy(m::StreamDestroy { stream: one }));
    c.done(Request::EventDestroy(m::EventDestroy { event: start }));
}

#[test]
fn variables_of_a_module() {
    let mut c = client();
    let (library, _, _, card) = c.load(PTX.as_bytes());
    let index = card
        .kernels
        .iter()
        .position(|k| k.name == "count_up")
        .unwrap();
    let global = |name| Request::LibraryGlobal(m::LibraryGlobal { library, name });
    let counter: m::LibraryGlobalReply = c.ask(global(b"counter"));
    let scale: m::LibraryGlobalReply = c.ask(global(b"scale"));
    assert_eq!((counter.len, scale.len), (4, 4));
    assert_eq!(c.read_words(counter.va, 1), [7]);
    c.write_words(scale.va, &[100]);
    c.done(Request::Launch(launch(
        library << 32 | index as u64,
        2,
        1,
        &[],
    )));
    assert_eq!(c.read_words(counter.va, 1), [207]);
    assert_eq!(c.status(global(b"nothing")), CUresult::CUDA_ERROR_NOT_FOUND);
}

const MANAGED: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 counter = 40;
.visible .global .attribute(.managed) .align 8 .b8 many[20000];
.visible .global .align 4 .u32 step = 2;
.visible .global .align 8 .u64 pointer = counter;
.visible .entry add() {
    .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.global.u32 %r1, [step];
    ld.global.u64 %rd1, [pointer];
    ld.u32 %r2, [%rd1];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [counter], %r2;
    st.global.u32 [many+16000], %r2;
    ret;
}";

#[test]
fn managed_variables_are_mirrors_until_their_library_goes() {
    let mut c = client();
    let (library, _, _, _) = c.load(MANAGED.as_bytes());
    let global = |name| Request::LibraryGlobal(m::LibraryGlobal { library, name });
    let counter: m::LibraryGlobalReply = c.ask(global(b"counter"));
    let many: m::LibraryGlobalReply = c.ask(global(b"many"));
    let step: m::LibraryGlobalReply = c.ask(global(b"step"));
    assert_eq!([counter.managed, many.managed, step.managed], [1, 1, 0]);
    // Each variable has pages of its own, outside of the device's window.
    assert!(counter.va.is_multiple_of(4096) && many.va.is_multiple_of(4096));
    assert!(!(c.base..c.base + super::super::WINDOW_BYTES).contains(&counter.va));
    let mut taken = Vec::new();
    let mut take = |c: &mut Client| {
        taken.clear();
        c.device
            .take_host_pages(&mut |va, bytes| taken.push((va, bytes.to_vec())));
        taken.clone()
    };
    // The client is assumed to hold zeros, so it is sent the first contents once.
    assert_eq!(take(&mut c), [(counter.va, vec![40, 0, 0, 0])]);
    assert_eq!(take(&mut c), []);
    c.done(Request::HostWrite(m::HostWrite {
        va: counter.va,
        data: &[100, 0, 0, 0],
    }));
    c.done(Request::Launch(launch(library << 32, 1, 1, &[])));
    c.sync().unwrap();
    let sum = vec![102, 0, 0, 0];
    assert_eq!(
        take(&mut c),
        [(counter.va, sum.clone()), (many.va + 16000, sum)]
    );
    // Only the end of its library unmaps it.
    let unmap = || Request::HostUnmap(m::HostUnmap { va: counter.va });
    assert_eq!(
        c.status(unmap()),
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    );
    c.done(Request::LibraryUnload(m::LibraryUnload { library }));
    let write = m::HostWrite {
        va: counter.va,
        data: &[1],
    };
    assert!(c.send(&Request::HostWrite(write)).is_err());
}

#[test]
fn kernels_print() {
    let mut c = client();
    let kernel = c.kernels();
    c.done(Request::Launch(launch(
        kernel("print"),
        1,
        1,
        &5u32.to_le_bytes(),
    )));
    c.sync().unwrap();
    let mut printed = Printed::default();
    c.device.take_printed(&mut printed, false);
    assert_eq!(printed.stdout, b"hi 5\n");
}

#[test]
fn shared_memory_and_attributes() {
    let mut c = client();
    let kernel = c.kernels();
    let shared = kernel("shared");
    let arguments = params(&[c.base]);
    let mut big = launch(shared, 1, 32, &arguments);
    big.shared_bytes = 100 << 10;
    assert_eq!(
        c.status(Request::Launch(big.clone())),
        CUresult::CUDA_ERROR_INVALID_VALUE
    );
    let set = |value| {
        Request::KernelSetAttribute(m::KernelSetAttribute {
            kernel: shared,
            attribute: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            value,
        })
    };
    assert_eq!(c.status(set(164 << 10)), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(c.status(set(-1)), CUresult::CUDA_ERROR_INVALID_VALUE);
    c.done(set(100 << 10));
    c.done(Request::Launch(big));
    assert_eq!(c.read_words(c.base, 1), [99]);
    let (_, reply) = c
        .send(&Request::KernelAttributes(m::KernelAttributes {
            kernel: shared,
        }))
        .unwrap();
    let reply = m::KernelAttributesReply::decode(&mut Reader::new(&reply)).unwrap();
    let values: Vec<i32> = reply
        .values
        .as_chunks::<4>()
        .0
        .iter()
        .map(|v| i32::from_le_bytes(*v))
        .collect();
    assert_eq!(values.len(), CU_FUNC_ATTRIBUTE_MAX as usize);
    assert_eq!(
        values[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as usize],
        1024
    );
    assert_eq!(
        values[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as usize],
        100 << 10
    );
    assert_eq!(values[CU_FUNC_ATTRIBUTE_BINARY_VERSION as usize], 80);
    assert_eq!(values[CU_FUNC_ATTRIBUTE_PTX_VERSION as usize], 80);
}

/// Two kernels whose functions have 32,000 bytes each: ptxas 13.0 says 32,000 of each kernel, and
/// refuses one that calls both.
#[test]
fn static_shared_memory_is_that_of_the_calls() {
    let mut c = client();
    let text = |kernels: &str| {
        format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n\
             .shared .align 4 .b8 a[32000];\n.shared .align 4 .b8 b[32000];\n\
             .func fa() {{ st.shared.u32 [a+31996], 1; ret; }}\n\
             .func fb() {{ st.shared.u32 [b+31996], 1; ret; }}\n\
             .visible .entry ka() {{ call fa; ret; }}\n\
             .visible .entry kb() {{ call fb; ret; }}\n{kernels}"
        )
    };
    let (library, status, log, _) = c.load(text("").as_bytes());
    assert_eq!(status, CUresult::CUDA_SUCCESS, "{log}");
    for index in 0..2 {
        let kernel = library << 32 | index;
        let request = Request::KernelAttributes(m::KernelAttributes { kernel });
        let (_, reply) = c.send(&request).unwrap();
        let reply = m::KernelAttributesReply::decode(&mut Reader::new(&reply)).unwrap();
        let values = reply.values.as_chunks::<4>().0;
        let shared = values[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as usize];
        assert_eq!(i32::from_le_bytes(shared), 32000);
        let mut more = launch(kernel, 1, 32, &[]);
        more.shared_bytes = 49152 - 32000 + 1;
        assert_eq!(
            c.status(Request::Launch(more.clone())),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        more.shared_bytes -= 1;
        c.done(Request::Launch(more));
        c.sync().unwrap();
    }
    let both = text(".visible .entry both() { call fa; call fb; ret; }");
    let (_, status, log, _) = c.load(both.as_bytes());
    assert_eq!(status, CUresult::CUDA_ERROR_INVALID_PTX);
    assert_eq!(
        log,
        "PTX line 10, column 17: static shared memory of a kernel in bytes is 64000, the limit is 49152"
    );
    c.done(Request::Launch(launch(library << 32, 1, 32, &[])));
    c.sync().unwrap();
}

#[test]
fn occupancy_follows_the_rules_of_sm_80() {
    let mut c = client();
    let kernel = c.kernels();
    let mut blocks = |block_size, shared_bytes| {
        let reply: m::OccupancyReply = c.ask(Request::Occupancy(m::Occupancy {
            query: doc::OCCUPANCY_BLOCKS_PER_MULTIPROCESSOR,
            kernel: kernel("store"),
            block_size,
            shared_bytes,
            flags: 0,
            config: &[],
        }));
        reply.value
    };
    // 64 warps, 32 blocks, and 164 KiB of which each block loses 1 KiB.
    assert_eq!(blocks(1024, 0), 2);
    assert_eq!(blocks(256, 0), 8);
    assert_eq!(blocks(32, 0), 32);
    assert_eq!(blocks(128, 48 << 10), 3);
    assert_eq!(blocks(128, 163 << 10), 1);
    assert_eq!(blocks(128, 164 << 10), 0);
}

/// The limit of a kernel is 48 KiB until the program asks for more.
#[test]
fn shared_memory_for_blocks_is_what_a_launch_may_have() {
    let mut c = client();
    let kernel = c.kernels();
    let mut bytes = |blocks| {
        let reply: m::OccupancyReply = c.ask(Request::Occupancy(m::Occupancy {
            query: doc::OCCUPANCY_SHARED_BYTES_PER_BLOCK,
            kernel: kernel("store"),
            block_size: 128,
            shared_bytes: blocks,
            flags: 0,
            config: &[],
        }));
        reply.value
    };
    assert_eq!(bytes(1), 48 << 10);
    assert_eq!(bytes(2), 48 << 10);
    assert_eq!(bytes(4), 40 << 10);
}

#[test]
fn host_functions_are_handed_out_and_answered() {
    let mut c = client();
    let kernel = c.kernels();
    c.done(Request::HostFunc(m::HostFunc {
        stream: 0,
        call: 17,
    }));
    let arguments: Vec<u8> = [c.base.to_le_bytes().as_slice(), &3u32.to_le_bytes()].concat();
    c.done(Request::Launch(launch(kernel("store"), 1, 1, &arguments)));
    assert!(c.device.awaits_host_calls());
    let mut calls = Vec::new();
    c.device.take_host_calls(&mut calls);
    assert_eq!(calls, [(17, CUresult::CUDA_SUCCESS)]);
    c.done(Request::HostFuncDone(m::HostFuncDone { call: 17 }));
    assert_eq!(c.read_words(c.base, 1), [3]);
    assert!(!c.device.awaits_host_calls());
}

/// A graph of a memset of `base` to 41 and a kernel that adds 1 there, captured on `stream`.
struct Captured {
    stream: u64,
    graph: u64,
    exec: u64,
}

/// The number under which the client sees the captured kernel.
const KERNEL_NODE: u64 = 1 << 20;

/// Captures the two, and does not end the capture.
fn capture(c: &mut Client, increment: u64) -> Captured {
    let (stream, graph, exec) = (c.mint(), c.mint(), c.mint());
    let flags = CU_STREAM_NON_BLOCKING;
    c.done(Request::StreamCreate(m::StreamCreate {
        stream,
        flags,
        priority: 0,
    }));
    let begin = m::CaptureBegin {
        stream,
        mode: 0,
        graph: 0,
        dependencies: &[],
        edges: &[],
    };
    c.done(Request::CaptureBegin(begin));
    c.done(Request::CuMemsetD32Async(m::CuMemsetD32Async {
        dst_device: c.base,
        ui: 41,
        n: 1,
        h_stream: stream,
    }));
    let arguments = params(&[c.base]);
    let mut launch = launch(increment, 1, 1, &arguments);
    launch.stream = stream;
    c.done(Request::Launch(launch));
    Captured {
        stream,
        graph,
        exec,
    }
}

/// Returns what the client is told of the capture: its kernel has number [`KERNEL_NODE`].
fn look_at(c: &mut Client, captured: &Captured) {
    let graph = captured.graph;
    let (_, reply) = c
        .send(&Request::CaptureInfo(m::CaptureInfo {
            stream: captured.stream,
            graph,
            first_node: KERNEL_NODE,
            nodes_max: 8,
        }))
        .unwrap();
    let info = m::CaptureInfoReply::decode(&mut Reader::new(&reply)).unwrap();
    assert_eq!(
        (info.status, info.graph),
        (CU_STREAM_CAPTURE_STATUS_ACTIVE, graph)
    );
    assert_eq!(*info.nodes, KERNEL_NODE.to_le_bytes());
}

/// Ends the capture and makes the graph executable.
fn instantiate(c: &mut Client, captured: &Captured) {
    let Captured {
        stream,
        graph,
        exec,
    } = *captured;
    let end: m::CaptureEndReply = c.ask(Request::CaptureEnd(m::CaptureEnd { stream, graph }));
    assert_eq!(end.produced, 1);
    let made: m::GraphInstantiateReply = c.ask(Request::GraphInstantiate(m::GraphInstantiate {
        graph,
        exec,
        flags: 0,
    }));
    assert_eq!(made.status, CUDA_GRAPH_INSTANTIATE_SUCCESS);
}

fn run(c: &mut Client, captured: &Captured) {
    let Captured { stream, exec, .. } = *captured;
    c.sync().unwrap();
    c.done(Request::GraphLaunch(m::GraphLaunch { exec, stream }));
    c.wait(Request::FenceStream(m::FenceStream {
        stream,
        slot: 0,
        value: 0,
    }))
    .unwrap();
}

#[test]
fn a_captured_graph_runs_again_and_again() {
    let mut c = client();
    let kernel = c.kernels();
    let captured = capture(&mut c, kernel("increment"));
    look_at(&mut c, &captured);
    instantiate(&mut c, &captured);
    let Captured { graph, exec, .. } = captured;
    let (_, reply) = c
        .send(&Request::GraphNodes(m::GraphNodes {
            graph,
            roots_only: 0,
            first_node: 1 << 21,
            nodes_max: 8,
        }))
        .unwrap();
    let nodes = m::GraphNodesReply::decode(&mut Reader::new(&reply)).unwrap();
    let ids: Vec<u64> = outboard_wire::codec::ids(&nodes.nodes).collect();
    // The kernel keeps the number under which the client saw it during the capture.
    assert_eq!((nodes.count, ids), (2, vec![1 << 21, KERNEL_NODE]));
    let kind: m::GraphNodeTypeReply = c.ask(Request::GraphNodeType(m::GraphNodeType {
        node: KERNEL_NODE,
    }));
    assert_eq!(kind.node_type, CU_GRAPH_NODE_TYPE_KERNEL);
    for _ in 0..3 {
        c.write_words(c.base, &[0]);
        run(&mut c, &captured);
        assert_eq!(c.read_words(c.base, 1), [42]);
    }
    c.done(Request::CuGraphDestroy(m::CuGraphDestroy {
        h_graph: graph,
    }));
    c.done(Request::CuGraphExecDestroy(m::CuGraphExecDestroy {
        h_graph_exec: exec,
    }));
}

#[test]
fn a_captured_kernel_gets_another_address() {
    let mut c = client();
    let kernel = c.kernels();
    let captured = capture(&mut c, kernel("increment"));
    look_at(&mut c, &captured);
    instantiate(&mut c, &captured);
    let elsewhere = params(&[c.base + 4]);
    let work = doc::to_bytes(&NodeWork::Kernel(KernelWork {
        kernel: kernel("increment"),
        grid: [2, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
        params: elsewhere,
    }))
    .unwrap();
    c.done(Request::GraphSet(m::GraphSet {
        exec: captured.exec,
        node: KERNEL_NODE,
        work: &work,
    }));
    c.write_words(c.base, &[0, 0]);
    run(&mut c, &captured);
    assert_eq!(c.read_words(c.base, 2), [41, 2]);
}

#[test]
fn cards_and_the_management_library() {
    let mut c = client_with(SoftOptions {
        memory_bytes: Some(64 << 20),
        threads: Some(3),
        devices: 2,
        ..SoftOptions::default()
    });
    let cards = c.device.cards(0).unwrap();
    assert_eq!(cards.len(), 2);
    assert_ne!(cards[0].uuid, cards[1].uuid);
    let attribute = |a: u32| cards[1].attributes[a as usize];
    assert_eq!(
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        Some(8)
    );
    assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), Some(3));
    assert_eq!(attribute(0), None);
    let (_, reply) = c
        .send(&Request::NvmlSnapshot(m::NvmlSnapshot {
            detail: doc::NVML_NOW,
        }))
        .unwrap();
    let reply = m::NvmlSnapshotReply::decode(&mut Reader::new(&reply)).unwrap();
    let snapshot: doc::NvmlSnapshot = doc::from_bytes(&reply.document).unwrap();
    assert_eq!(snapshot.devices.len(), 2);
    assert_eq!(snapshot.devices[0].memory.used_bytes, 4 << 20);
    assert_eq!(snapshot.devices[1].memory.free_bytes, 64 << 20);
    assert_eq!(
        snapshot.devices[0].processes_compute[0].pid,
        std::process::id()
    );
    assert_eq!(
        snapshot.devices[0].uuid.len(),
        "GPU-6fb25d7b-0000-0000-0000-000000000000".len()
    );
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    let mut c = client();
    let kernel = c.kernels();
    let blocks = 60;
    let mut record = [0; doc::LAUNCH_ATTRIBUTE_BYTES];
    record[..4].copy_from_slice(&CU_LAUNCH_ATTRIBUTE_COOPERATIVE.to_le_bytes());
    record[8] = 1;
    // Twice, because each launch has a barrier of its own.
    for _ in 0..2 {
        c.done(Request::CuMemsetD32V2(m::CuMemsetD32V2 {
            dst_device: c.base,
            ui: 0,
            n: 2 * u64::from(blocks),
        }));
        let arguments = params(&[c.base]);
        let mut barrier = launch(kernel("grid_barrier"), blocks, 1, &arguments);
        barrier.attributes = &record;
        c.done(Request::Launch(barrier));
        let words = c.read_words(c.base, 2 * blocks as usize);
        let expected: Vec<u32> = (0..blocks).map(|i| (i + 1) % blocks + 1).collect();
        assert_eq!(words[blocks as usize..], expected);
    }
}
