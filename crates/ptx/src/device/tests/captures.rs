use super::*;

fn failed<T>(result: Result<T, Error>) -> Option<CaptureError> {
    match result {
        Err(Error::Capture(error)) => Some(error),
        _ => None,
    }
}

#[test]
fn a_fork_and_a_join_become_a_diamond() {
    let b = bench();
    let (stream, side) = (b.non_blocking(), b.non_blocking());
    let (fork, join) = (b.event(), b.event());
    b.gpu.begin_capture(stream, None).unwrap();
    b.set32(stream, b.base, 1);
    b.gpu.submit(stream, Op::RecordEvent(fork)).unwrap();
    b.gpu.submit(side, Op::WaitEvent(fork)).unwrap();
    b.set32(side, b.base + 4, 2);
    b.set32(stream, b.base + 8, 3);
    b.gpu.submit(side, Op::RecordEvent(join)).unwrap();
    b.gpu.submit(stream, Op::WaitEvent(join)).unwrap();
    b.gpu
        .submit(stream, Op::Copy(Copy::line(b.base + 16, b.base, 12)))
        .unwrap();
    let CaptureInfo::Active {
        deps, graph: seen, ..
    } = b.gpu.capture_info(side).unwrap()
    else {
        panic!("the side stream is not part of the capture");
    };
    assert_eq!(deps.len(), 1);
    let graph = b.gpu.end_capture(stream).unwrap();
    assert_eq!(graph, seen);
    assert_eq!(b.gpu.capture_info(side).unwrap(), CaptureInfo::None);
    let shape = b.gpu.graph(graph).unwrap();
    let nodes: Vec<_> = shape.nodes().collect();
    let [a, l, r, e] = nodes[..] else {
        panic!("{nodes:?}");
    };
    assert_eq!(
        shape.edges().collect::<Vec<_>>(),
        [(a, l), (a, r), (l, e), (r, e)].map(|(from, to)| (from, to, Edge::default()))
    );
    // Nothing ran yet.
    assert_eq!(b.peek32(b.base), 0);
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    b.gpu.launch_graph(exec, stream).unwrap();
    b.sync(stream).unwrap();
    assert_eq!([16, 20, 24].map(|at| b.peek32(b.base + at)), [1, 2, 3]);
    // The event still belongs to the capture.
    assert_eq!(
        failed(b.gpu.event_fence(fork)),
        Some(CaptureError::CapturedEvent)
    );
    assert_eq!(
        failed(b.gpu.submit(side, Op::WaitEvent(fork))),
        Some(CaptureError::CapturedEvent)
    );
    b.gpu.submit(stream, Op::RecordEvent(fork)).unwrap();
    wait(&mut b.gpu.event_fence(fork).unwrap()).unwrap();
}

#[test]
fn a_fork_that_is_not_joined() {
    let b = bench();
    let (stream, side, fork) = (b.non_blocking(), b.non_blocking(), b.event());
    b.gpu.begin_capture(stream, None).unwrap();
    b.gpu.submit(stream, Op::RecordEvent(fork)).unwrap();
    b.gpu.submit(side, Op::WaitEvent(fork)).unwrap();
    b.set32(side, b.base, 2);
    assert_eq!(
        failed(b.gpu.end_capture(side)),
        Some(CaptureError::Unmatched)
    );
    assert_eq!(
        failed(b.gpu.end_capture(stream)),
        Some(CaptureError::Unjoined)
    );
    // Both streams work again.
    b.set32(side, b.base, 3);
    b.sync(side).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base), 3);
}

#[test]
fn waiting_for_a_capturing_stream_ends_the_capture() {
    let b = bench();
    for wait in [
        (|b, s| b.gpu.stream_fence(s).map(|_| ())) as fn(&Bench, StreamId) -> Result<(), Error>,
        |b, s| b.gpu.upload(s, Rows::line(b.base), Extent::line(1), &[1]),
        |b, s| {
            b.gpu
                .download(s, Rows::line(b.base), Extent::line(1))
                .map(|_| ())
        },
    ] {
        let stream = b.non_blocking();
        b.gpu.begin_capture(stream, None).unwrap();
        assert_eq!(failed(wait(&b, stream)), Some(CaptureError::Unsupported));
        assert_eq!(
            b.gpu.capture_info(stream).unwrap(),
            CaptureInfo::Invalidated
        );
        assert_eq!(
            failed(b.gpu.submit(stream, Op::Empty)),
            Some(CaptureError::Invalidated)
        );
        assert_eq!(
            failed(b.gpu.end_capture(stream)),
            Some(CaptureError::Invalidated)
        );
        assert_eq!(b.gpu.capture_info(stream).unwrap(), CaptureInfo::None);
        b.sync(stream).unwrap();
    }
}

#[test]
fn waiting_for_a_context_does_not_disturb_its_captures() {
    let b = bench();
    let (stream, gate) = (b.non_blocking(), gate());
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.gpu.begin_capture(stream, None).unwrap();
    b.gpu.submit(stream, Op::Empty).unwrap();
    // What was submitted to the stream before its capture is waited for.
    let mut fence = b.gpu.context_fence(b.context).unwrap();
    assert!(stays_pending(&mut fence));
    open(&gate);
    wait(&mut fence).unwrap();
    b.gpu.submit(stream, Op::Empty).unwrap();
    b.gpu.end_capture(stream).unwrap();
}

#[test]
fn the_legacy_stream_and_captures() {
    let b = bench();
    assert_eq!(
        failed(b.gpu.begin_capture(b.legacy(), None)),
        Some(CaptureError::Unsupported)
    );
    let blocking = b.blocking();
    b.gpu.begin_capture(blocking, None).unwrap();
    assert_eq!(
        failed(b.gpu.capture_info(b.legacy())),
        Some(CaptureError::Implicit)
    );
    assert_eq!(
        failed(b.gpu.submit(b.legacy(), Op::Empty)),
        Some(CaptureError::Implicit)
    );
    assert_eq!(
        failed(b.gpu.end_capture(blocking)),
        Some(CaptureError::Invalidated)
    );
    // The capture of a non-blocking stream does not affect the legacy stream.
    let free = b.non_blocking();
    b.gpu.begin_capture(free, None).unwrap();
    b.set32(b.legacy(), b.base, 1);
    b.sync(b.legacy()).unwrap();
    b.gpu.end_capture(free).unwrap();
}

#[test]
fn captures_do_not_mix() {
    let b = bench();
    let (one, two) = (b.non_blocking(), b.non_blocking());
    let (inside, outside) = (b.event(), b.event());
    b.gpu.submit(two, Op::RecordEvent(outside)).unwrap();
    b.gpu.begin_capture(one, None).unwrap();
    b.gpu.submit(one, Op::RecordEvent(inside)).unwrap();
    b.gpu.begin_capture(two, None).unwrap();
    assert!(matches!(
        b.gpu.begin_capture(two, None),
        Err(Error::IllegalState(_))
    ));
    assert_eq!(
        failed(b.gpu.submit(two, Op::WaitEvent(inside))),
        Some(CaptureError::Merge)
    );
    assert_eq!(
        failed(b.gpu.end_capture(one)),
        Some(CaptureError::Invalidated)
    );
    assert_eq!(
        failed(b.gpu.end_capture(two)),
        Some(CaptureError::Invalidated)
    );
    assert!(matches!(
        b.gpu.end_capture(two),
        Err(Error::IllegalState(_))
    ));
    b.gpu.begin_capture(one, None).unwrap();
    // The event was never recorded, so there is nothing to wait for.
    b.gpu.submit(one, Op::WaitEvent(b.event())).unwrap();
    b.gpu.end_capture(one).unwrap();
    b.gpu.begin_capture(one, None).unwrap();
    assert_eq!(
        failed(b.gpu.submit(one, Op::WaitEvent(outside))),
        Some(CaptureError::Isolation)
    );
    assert_eq!(
        failed(b.gpu.end_capture(one)),
        Some(CaptureError::Invalidated)
    );
}

#[test]
fn dependencies_can_be_set_and_graphs_continued() {
    let b = bench();
    let stream = b.non_blocking();
    let graph = b.gpu.create_graph().unwrap();
    let first = b.gpu.add_node(graph, set32(b.base, 1), &[]).unwrap();
    b.gpu
        .begin_capture(stream, Some((graph, &[(first, Edge::default())])))
        .unwrap();
    assert!(matches!(
        b.gpu.destroy_graph(graph),
        Err(Error::IllegalState(_))
    ));
    b.gpu.submit(stream, Op::Host(9)).unwrap();
    let plain = [(first, Edge::default())];
    b.gpu.update_capture(stream, &plain, true).unwrap();
    b.set32(stream, b.base + 4, 2);
    b.gpu.update_capture(stream, &plain, false).unwrap();
    b.gpu.submit(stream, Op::Empty).unwrap();
    assert_eq!(b.gpu.end_capture(stream), Ok(graph));
    let nodes: Vec<_> = b.gpu.graph(graph).unwrap().nodes().collect();
    assert_eq!(
        b.gpu.neighbours(graph, first, true).unwrap(),
        [nodes[1], nodes[2], nodes[3]].map(|node| (node, Edge::default()))
    );
    assert_eq!(
        b.gpu.neighbours(graph, nodes[3], false).unwrap(),
        [first, nodes[2]].map(|node| (node, Edge::default()))
    );
}

/// Returns the edges of a graph, as numbers of nodes in the order of their creation.
fn numbered(b: &Bench, graph: GraphId) -> Vec<(usize, usize, Edge)> {
    let graph = b.gpu.graph(graph).unwrap();
    let nodes: Vec<_> = graph.nodes().collect();
    let number = |node| nodes.iter().position(|n| *n == node).unwrap();
    let edges = graph.edges();
    edges
        .map(|(from, to, edge)| (number(from), number(to), edge))
        .collect()
}

fn launch(b: &Bench, stream: StreamId, early: &Early) {
    let Op::Launch(launch) = kernel(|_| Ok(())) else {
        unreachable!();
    };
    b.gpu.launch(stream, launch, early).unwrap();
}

#[test]
fn launches_that_may_begin_early_have_edges_that_say_so() {
    let b = bench();
    let stream = b.non_blocking();
    let serialized = Early {
        serialized: true,
        events: Vec::new(),
    };
    b.gpu.begin_capture(stream, None).unwrap();
    launch(&b, stream, &serialized);
    launch(&b, stream, &serialized);
    // Only kernels let others begin early.
    b.set32(stream, b.base, 1);
    launch(&b, stream, &serialized);
    launch(&b, stream, &Early::default());
    let graph = b.gpu.end_capture(stream).unwrap();
    let plain = Edge::default();
    assert_eq!(
        numbered(&b, graph),
        [
            (0, 1, PROGRAMMATIC),
            (1, 2, plain),
            (2, 3, plain),
            (3, 4, plain)
        ]
    );
    // Outside of captures there is nothing to keep.
    launch(&b, stream, &serialized);
    b.sync(stream).unwrap();
}

#[test]
fn an_event_of_a_kernel_gives_its_edge_to_what_waits_for_it() {
    let b = bench();
    for edge in [PROGRAMMATIC, AT_BLOCK_START, LAUNCH_COMPLETION] {
        let (stream, side, event) = (b.non_blocking(), b.non_blocking(), b.event());
        let early = Early {
            serialized: false,
            events: vec![(event, edge)],
        };
        b.gpu.begin_capture(stream, None).unwrap();
        launch(&b, stream, &early);
        b.gpu.submit(side, Op::WaitEvent(event)).unwrap();
        let CaptureInfo::Active { deps, .. } = b.gpu.capture_info(side).unwrap() else {
            panic!("the side stream is not part of the capture");
        };
        assert_eq!(
            deps.iter().map(|(_, edge)| *edge).collect::<Vec<_>>(),
            [edge]
        );
        launch(&b, side, &Early::default());
        let join = b.event();
        b.gpu.submit(side, Op::RecordEvent(join)).unwrap();
        b.gpu.submit(stream, Op::WaitEvent(join)).unwrap();
        // The end of the kernel itself is no less than its event.
        b.gpu.submit(stream, Op::WaitEvent(event)).unwrap();
        b.gpu.submit(stream, Op::Empty).unwrap();
        let graph = b.gpu.end_capture(stream).unwrap();
        let plain = Edge::default();
        assert_eq!(
            numbered(&b, graph),
            [(0, 1, edge), (0, 2, plain), (1, 2, plain)]
        );
        let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
        b.gpu.launch_graph(exec, stream).unwrap();
        b.sync(stream).unwrap();
    }
    // Outside of captures the event is recorded after the kernel.
    let (stream, event) = (b.non_blocking(), b.event());
    let early = Early {
        serialized: false,
        events: vec![(event, PROGRAMMATIC)],
    };
    launch(&b, stream, &early);
    wait(&mut b.gpu.event_fence(event).unwrap()).unwrap();
}

#[test]
fn dependencies_are_set_with_edges() {
    let b = bench();
    let stream = b.non_blocking();
    let graph = b.gpu.create_graph().unwrap();
    let first = b.gpu.add_node(graph, kernel(|_| Ok(())), &[]).unwrap();
    let after = [(first, PROGRAMMATIC)];
    b.gpu.begin_capture(stream, Some((graph, &after))).unwrap();
    launch(&b, stream, &Early::default());
    b.gpu
        .update_capture(stream, &[(first, LAUNCH_COMPLETION)], true)
        .unwrap();
    launch(&b, stream, &Early::default());
    // Other data, and ports of nodes that are no kernels, are refused; the capture goes on.
    for edge in [[1, 0, 0], [0, 0, 1], [1, 1, 1], [3, 0, 1], [1, 0, 2]] {
        let mut data = Edge::default();
        data[..3].copy_from_slice(&edge);
        let after = [(first, data)];
        assert!(b.gpu.update_capture(stream, &after, true).is_err());
    }
    let empty = b.gpu.add_node(graph, Op::Empty, &[]).unwrap();
    let after = [(empty, PROGRAMMATIC)];
    assert!(b.gpu.update_capture(stream, &after, true).is_err());
    b.gpu.end_capture(stream).unwrap();
    assert_eq!(
        numbered(&b, graph),
        [(0, 1, PROGRAMMATIC), (0, 2, LAUNCH_COMPLETION)]
    );
    assert!(
        b.gpu
            .add_edges(graph, &[(first, empty, PROGRAMMATIC)])
            .is_err()
    );
    // An update may not change an edge's data.
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    let changed = b.gpu.clone_graph(graph).unwrap();
    assert!(b.gpu.update_exec(exec, changed).unwrap().is_ok());
    let nodes: Vec<_> = b.gpu.graph(changed).unwrap().nodes().collect();
    let plain = [(nodes[0], nodes[1], Edge::default())];
    b.gpu.remove_edges(changed, &plain).unwrap();
    b.gpu.add_edges(changed, &plain).unwrap();
    assert!(b.gpu.update_exec(exec, changed).unwrap().is_err());
}

#[test]
fn external_events_and_launched_graphs_become_nodes() {
    let b = bench();
    let (stream, event) = (b.non_blocking(), b.event());
    let inner = b.gpu.create_graph().unwrap();
    b.gpu.add_node(inner, set32(b.base, 6), &[]).unwrap();
    let inner = b.gpu.instantiate(b.context, inner, 0).unwrap();
    assert!(
        b.gpu
            .submit_external(stream, Op::RecordEvent(event))
            .is_err()
    );
    b.gpu.begin_capture(stream, None).unwrap();
    b.gpu.launch_graph(inner, stream).unwrap();
    b.gpu
        .submit_external(stream, Op::RecordEvent(event))
        .unwrap();
    let graph = b.gpu.end_capture(stream).unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    b.gpu.launch_graph(exec, stream).unwrap();
    wait(&mut b.gpu.event_fence(event).unwrap()).unwrap();
    assert_eq!(b.peek32(b.base), 6);
}

#[test]
fn a_destroyed_stream_takes_its_capture_along() {
    let b = bench();
    let (stream, side, fork) = (b.non_blocking(), b.non_blocking(), b.event());
    b.gpu.begin_capture(stream, None).unwrap();
    b.gpu.submit(stream, Op::RecordEvent(fork)).unwrap();
    b.gpu.submit(side, Op::WaitEvent(fork)).unwrap();
    b.gpu.destroy_stream(stream).unwrap();
    assert_eq!(b.gpu.capture_info(side).unwrap(), CaptureInfo::None);
    b.set32(side, b.base, 4);
    b.sync(side).unwrap();
    assert_eq!(b.peek32(b.base), 4);
}

#[test]
fn a_capture_goes_on_without_a_destroyed_stream_that_joined_it() {
    for joined_again in [true, false] {
        let b = bench();
        let (stream, side) = (b.non_blocking(), b.non_blocking());
        let (fork, join) = (b.event(), b.event());
        b.gpu.begin_capture(stream, None).unwrap();
        b.set32(stream, b.base, 1);
        b.gpu.submit(stream, Op::RecordEvent(fork)).unwrap();
        b.gpu.submit(side, Op::WaitEvent(fork)).unwrap();
        if !joined_again {
            b.set32(side, b.base, 2);
        }
        b.gpu.submit(side, Op::RecordEvent(join)).unwrap();
        b.gpu.destroy_stream(side).unwrap();
        b.set32(stream, b.base, 3);
        assert_eq!(b.gpu.end_capture(stream).is_ok(), joined_again);
    }
}
