//! Graphs that copy from host memory to host memory, whose launches wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outboard_wire::doc::{self, BoxEnd, CopyBox, NodeWork};

use super::*;

const LEN: u64 = 64;

/// A client with host memory and device memory, and the numbers of what it makes.
struct Graphs {
    client: Client,
    host: u64,
    device: u64,
    last: u64,
}

impl Graphs {
    fn new(fake: &Fake) -> Graphs {
        static NEXT: AtomicU64 = AtomicU64::new(0x5700_0000_0000);
        let mut client = Client::new(fake);
        let host = NEXT.fetch_add(4096, Relaxed);
        client.done(Request::HostMap(messages::HostMap {
            va: host,
            len: 4096,
            flags: 0,
            fd_tag: 0,
        }));
        let device = client.map(0, 2 * MIB);
        Graphs {
            client,
            host,
            device,
            last: 100,
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn done(&mut self, request: Request<'_>) {
        self.client.send(request).expect("done");
    }

    fn copy(&self, at: u64) -> NodeWork {
        let end = |address| BoxEnd::Pitched {
            address,
            pitch_bytes: LEN,
            height: 1,
        };
        NodeWork::Copy(CopyBox {
            src: end(at),
            src_x: 0,
            src_y: 0,
            src_z: 0,
            dst: end(at + 2 * LEN),
            dst_x: 0,
            dst_y: 0,
            dst_z: 0,
            width: LEN,
            height: 1,
            depth: 1,
        })
    }

    /// Makes a graph of one node. Returns the graph's number and the node's.
    fn graph(&mut self, work: &NodeWork) -> (u64, u64) {
        let (graph, node) = (self.number(), self.number());
        self.done(Request::CuGraphCreate(messages::CuGraphCreate {
            ph_graph: graph,
            flags: 0,
        }));
        let work = doc::to_bytes(work).expect("encoded");
        self.done(Request::GraphAdd(messages::GraphAdd {
            graph,
            node,
            dependencies: &[],
            work: &work,
        }));
        (graph, node)
    }

    fn set(&mut self, exec: u64, node: u64, work: &NodeWork) {
        let work = doc::to_bytes(work).expect("encoded");
        let work = &work;
        self.done(Request::GraphSet(messages::GraphSet { exec, node, work }));
    }

    fn exec(&mut self, graph: u64) -> u64 {
        let exec = self.number();
        self.done(Request::GraphInstantiate(messages::GraphInstantiate {
            graph,
            exec,
            flags: 0,
        }));
        exec
    }

    fn launch(&mut self, exec: u64) {
        let stream = 0;
        self.done(Request::GraphLaunch(messages::GraphLaunch { exec, stream }));
    }

    fn capture(&mut self, captured: impl FnOnce(&mut Graphs)) -> u64 {
        self.done(Request::CaptureBegin(messages::CaptureBegin {
            stream: 0,
            mode: 2,
            graph: 0,
            dependencies: &[],
            edges: &[],
        }));
        captured(self);
        let (stream, graph) = (0, self.number());
        self.done(Request::CaptureEnd(messages::CaptureEnd { stream, graph }));
        graph
    }
}

#[test]
fn only_graphs_that_copy_between_host_memory_are_launched_aside() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let (on_host, on_device) = (graphs.copy(graphs.host), graphs.copy(graphs.device));
    let (waits, waits_node) = graphs.graph(&on_host);
    let waits_exec = graphs.exec(waits);
    let is_aside = |graphs: &mut Graphs, exec| {
        let before = fake.ask("fake_launched_aside", 0);
        graphs.launch(exec);
        fake.ask("fake_launched_aside", 0) > before
    };
    assert!(is_aside(&mut graphs, waits_exec));
    // Graphs beside it are launched as before.
    let (plain, plain_node) = graphs.graph(&on_device);
    let [first, second] = [(); 2].map(|()| graphs.exec(plain));
    assert!(!is_aside(&mut graphs, first));
    // A clone, a graph with it inside, captures of such a copy and of a launch.
    let clone = graphs.number();
    graphs.done(Request::GraphClone(messages::GraphClone {
        graph: waits,
        clone,
    }));
    let (outer, _) = graphs.graph(&NodeWork::Child(waits));
    let (host, len) = (graphs.host, LEN);
    let copied = graphs.capture(|graphs| {
        graphs.done(Request::Copy(messages::Copy {
            dst: host,
            src: host + 2 * LEN,
            len,
            stream: 0,
            sync: 0,
        }));
    });
    let launched = graphs.capture(|graphs| graphs.launch(waits_exec));
    for graph in [clone, outer, copied, launched] {
        let exec = graphs.exec(graph);
        assert!(is_aside(&mut graphs, exec), "{graph}");
    }
    let beside = graphs.capture(|graphs| graphs.launch(first));
    let beside = graphs.exec(beside);
    assert!(!is_aside(&mut graphs, beside));
    // An executable graph that is updated, and nodes that change.
    graphs.done(Request::GraphExecUpdate(messages::GraphExecUpdate {
        exec: first,
        graph: waits,
        first_node: 10_000,
    }));
    assert!(is_aside(&mut graphs, first));
    assert!(!is_aside(&mut graphs, second));
    graphs.set(second, plain_node, &on_host);
    assert!(is_aside(&mut graphs, second));
    let third = graphs.exec(plain);
    assert!(!is_aside(&mut graphs, third));
    graphs.set(0, plain_node, &on_host);
    let fourth = graphs.exec(plain);
    assert!(is_aside(&mut graphs, fourth));
    assert!(!is_aside(&mut graphs, third));
    graphs.set(0, waits_node, &on_device);
}

#[test]
fn what_is_known_of_a_graph_is_known_of_the_graph_inside_a_node() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let on_host = graphs.copy(graphs.host);
    let (waits, _) = graphs.graph(&on_host);
    let (_, node) = graphs.graph(&NodeWork::Child(waits));
    let inside = graphs.number();
    let asked = messages::GraphChild {
        node,
        graph: inside,
    };
    graphs.done(Request::GraphChild(asked));
    let clone = graphs.number();
    graphs.done(Request::GraphClone(messages::GraphClone {
        graph: inside,
        clone,
    }));
    let exec = graphs.exec(clone);
    let before = fake.ask("fake_launched_aside", 0);
    graphs.launch(exec);
    assert!(fake.ask("fake_launched_aside", 0) > before);
}

#[test]
fn memory_of_captured_copies_lives_as_long_as_what_reads_it() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let device = graphs.device;
    let copied = |graphs: &mut Graphs| {
        let graph = graphs.capture(|graphs| {
            graphs.done(Request::CopyIn(messages::CopyIn {
                dst: device,
                stream: 0,
                sync: 0,
                data: b"data"[..].into(),
            }));
        });
        (graph, graphs.exec(graph))
    };
    let held = |graphs: &Graphs, exec| {
        let exec = graphs.client.device.graphs.execs.get(exec).expect("there");
        exec.memory.len()
    };
    let (first, exec) = copied(&mut graphs);
    assert_eq!(held(&graphs, exec), 1);
    // A graph that launches another reads what that one reads.
    let outer = graphs.capture(|graphs| graphs.launch(exec));
    let outer = graphs.exec(outer);
    assert_eq!(held(&graphs, outer), 1);
    // An update replaces all that was read before.
    for _ in 0..3 {
        let (other, _) = copied(&mut graphs);
        graphs.done(Request::GraphExecUpdate(messages::GraphExecUpdate {
            exec,
            graph: other,
            first_node: 10_000,
        }));
        assert_eq!(held(&graphs, exec), 1);
    }
    // One that fails may have replaced a part.
    fake.ask("fake_updates_fail", 1);
    let (other, _) = copied(&mut graphs);
    graphs.done(Request::GraphExecUpdate(messages::GraphExecUpdate {
        exec,
        graph: other,
        first_node: 10_000,
    }));
    assert_eq!(held(&graphs, exec), 2);
    let h_graph = first;
    graphs.done(Request::CuGraphDestroy(messages::CuGraphDestroy {
        h_graph,
    }));
}

/// Begins a capture in a stream, of a copy whose data the graph keeps.
fn begin_capture(graphs: &mut Graphs, stream: u64, graph: u64) {
    graphs.done(Request::CaptureBegin(messages::CaptureBegin {
        stream,
        mode: 2,
        graph,
        dependencies: &[],
        edges: &[],
    }));
    graphs.done(Request::CopyIn(messages::CopyIn {
        dst: graphs.device,
        stream,
        sync: 0,
        data: b"data"[..].into(),
    }));
    assert_eq!(graphs.client.device.capture_memory.len(), 1);
}

/// Makes the client see the graph that a stream captures. Returns the graph's number.
fn see_captured(graphs: &mut Graphs, stream: u64) -> u64 {
    let graph = graphs.number();
    let info = messages::CaptureInfo {
        stream,
        graph,
        nodes_max: 0,
        first_node: 20_000,
    };
    let info = graphs
        .client
        .with(|device, cx| device.capture_info(cx, &info));
    assert_eq!(info.expect("told").graph, graph);
    graph
}

#[test]
fn a_capture_that_fails_keeps_no_memory() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let stream = 0;
    begin_capture(&mut graphs, stream, 0);
    let seen = see_captured(&mut graphs, stream);
    fake.ask("fake_captures_fail", 1);
    let graph = graphs.number();
    let end = messages::CaptureEnd { stream, graph };
    graphs.client.refused(Request::CaptureEnd(end));
    assert!(graphs.client.device.capture_memory.is_empty());
    assert!(graphs.client.device.real_graph(seen).is_err());
}

#[test]
fn a_graph_keeps_what_a_failed_capture_has_added_to_it() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let copy = graphs.copy(graphs.device);
    let (graph, _) = graphs.graph(&copy);
    begin_capture(&mut graphs, 0, graph);
    fake.ask("fake_captures_fail", 1);
    let end = messages::CaptureEnd { stream: 0, graph };
    graphs.client.refused(Request::CaptureEnd(end));
    let device = &graphs.client.device;
    assert!(device.capture_memory.is_empty());
    let graph = device.real_graph(graph).expect("there");
    assert_eq!(device.graphs.memory_of(graph).len(), 1);
}

#[test]
fn a_stream_that_goes_while_it_captures_keeps_no_memory() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let context = graphs.client.context;
    graphs
        .client
        .done(Request::ContextCreate(messages::ContextCreate {
            context: 0x30,
            device: 0,
            flags: 0,
        }));
    for goes_with_context in [false, true] {
        graphs.client.context = 0x30;
        let stream = graphs.number();
        graphs.done(Request::StreamCreate(messages::StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        }));
        begin_capture(&mut graphs, stream, 0);
        let seen = see_captured(&mut graphs, stream);
        match goes_with_context {
            false => graphs.done(Request::StreamDestroy(messages::StreamDestroy { stream })),
            true => {
                graphs.client.context = context;
                let gone = messages::ContextDestroy { context: 0x30 };
                graphs.done(Request::ContextDestroy(gone));
            }
        }
        let device = &graphs.client.device;
        assert!(device.captures.is_empty());
        assert!(device.capture_memory.is_empty());
        assert!(device.real_graph(seen).is_err());
        assert!(device.orphans.is_empty(), "captured work does not run");
    }
}

#[test]
fn memory_of_a_destroyed_contexts_graphs_is_freed_once_the_device_is_idle() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let (context, device) = (graphs.client.context, graphs.device);
    graphs
        .client
        .done(Request::ContextCreate(messages::ContextCreate {
            context: 0x30,
            device: 0,
            flags: 0,
        }));
    graphs.client.context = 0x30;
    let before = fake.ask("fake_pinned", 0);
    let graph = graphs.capture(|graphs| {
        graphs.done(Request::CopyIn(messages::CopyIn {
            dst: device,
            stream: 0,
            sync: 0,
            data: b"data"[..].into(),
        }));
    });
    graphs.exec(graph);
    graphs.done(Request::CuGraphDestroy(messages::CuGraphDestroy {
        h_graph: graph,
    }));
    graphs.client.device.reap();
    fake.ask("fake_hold", 1);
    graphs.done(Request::CuMemsetD8Async(messages::CuMemsetD8Async {
        dst_device: device,
        uc: 1,
        n: 1,
        h_stream: 0,
    }));
    graphs.client.context = context;
    let gone = messages::ContextDestroy { context: 0x30 };
    graphs.done(Request::ContextDestroy(gone));
    graphs.client.device.reap();
    assert_eq!(fake.ask("fake_pinned", 0), before + 1);
    fake.ask("fake_hold", 0);
    graphs.client.device.reap();
    assert_eq!(fake.ask("fake_pinned", 0), before);
}

#[test]
fn an_abandoned_session_frees_no_host_memory() {
    let fake = Fake::build(&[]);
    let mut graphs = Graphs::new(&fake);
    let device = graphs.device;
    // A graph without an executable one keeps the data of its copies too.
    graphs.capture(|graphs| {
        graphs.done(Request::CopyIn(messages::CopyIn {
            dst: device,
            stream: 0,
            sync: 0,
            data: b"data"[..].into(),
        }));
    });
    let before = fake.ask("fake_pinned", 0);
    graphs.client.device.abandon();
    drop(graphs);
    assert_eq!(fake.ask("fake_pinned", 0), before);
}
