use super::*;

/// Adds one to a word; not atomically, so that overlapping runs would be noticed.
fn increment(b: &Bench, address: u64) -> Op {
    let memory = b.gpu.memory().clone();
    kernel(move |_| {
        let mut word = [0; 4];
        memory.read(address, &mut word).unwrap();
        thread::sleep(Duration::from_millis(1));
        let next = u32::from_le_bytes(word) + 1;
        memory.write(address, &next.to_le_bytes()).unwrap();
        Ok(())
    })
}

#[test]
fn a_diamond_runs_in_order_every_time() {
    let b = bench();
    let graph = b.gpu.create_graph().unwrap();
    let root = b.gpu.add_node(graph, set32(b.base, 1), &[]).unwrap();
    let left = b
        .gpu
        .add_node(graph, Op::Copy(Copy::line(b.base + 4, b.base, 4)), &[root])
        .unwrap();
    let right = b
        .gpu
        .add_node(graph, increment(&b, b.base + 8), &[root])
        .unwrap();
    let end = b
        .gpu
        .add_node(
            graph,
            Op::Copy(Copy::line(b.base + 16, b.base, 12)),
            &[left, right],
        )
        .unwrap();
    let shape = b.gpu.graph(graph).unwrap();
    assert_eq!(shape.roots().collect::<Vec<_>>(), [root]);
    assert_eq!(shape.nodes().collect::<Vec<_>>(), [root, left, right, end]);
    assert_eq!(
        shape.edges().collect::<Vec<_>>(),
        [(root, left), (root, right), (left, end), (right, end)].map(|(from, to)| (
            from,
            to,
            Edge::default()
        ))
    );
    let both = [left, right].map(|node| (node, Edge::default()));
    assert_eq!(b.gpu.neighbours(graph, root, true).unwrap(), both);
    assert_eq!(b.gpu.neighbours(graph, end, false).unwrap(), both);
    let exec = b.gpu.instantiate(b.context, graph, 3).unwrap();
    assert_eq!(b.gpu.exec_flags(exec), Ok(3));
    // The executable graph is independent of the graph.
    b.gpu.destroy_graph(graph).unwrap();
    let (one, two) = (b.non_blocking(), b.non_blocking());
    for _ in 0..5 {
        b.gpu.launch_graph(exec, one).unwrap();
        b.gpu.launch_graph(exec, two).unwrap();
    }
    b.sync(one).unwrap();
    b.sync(two).unwrap();
    assert_eq!(
        [
            b.peek32(b.base + 16),
            b.peek32(b.base + 20),
            b.peek32(b.base + 24)
        ],
        [1, 1, 10]
    );
}

#[test]
fn a_launch_takes_its_place_in_the_stream() {
    let b = bench();
    let (stream, gate) = (b.non_blocking(), gate());
    let graph = b.gpu.create_graph().unwrap();
    b.gpu
        .add_node(graph, Op::Copy(Copy::line(b.base + 4, b.base, 4)), &[])
        .unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    b.gpu.submit(stream, gated(&gate)).unwrap();
    b.set32(stream, b.base, 8);
    b.gpu.launch_graph(exec, stream).unwrap();
    b.set32(stream, b.base, 9);
    assert_eq!(b.peek32(b.base + 4), 0);
    open(&gate);
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base + 4), 8);
}

#[test]
fn cycles_and_wrong_edges_are_refused() {
    let b = bench();
    let graph = b.gpu.create_graph().unwrap();
    let one = b.gpu.add_node(graph, Op::Empty, &[]).unwrap();
    let two = b.gpu.add_node(graph, Op::Empty, &[one]).unwrap();
    assert!(b.gpu.add_node(graph, Op::Empty, &[one, one]).is_err());
    assert!(
        b.gpu
            .add_edges(graph, &[(one, two, Edge::default())])
            .is_err()
    );
    assert!(
        b.gpu
            .add_edges(graph, &[(one, one, Edge::default())])
            .is_err()
    );
    assert!(
        b.gpu
            .add_edges(graph, &[(NodeId(999), one, Edge::default())])
            .is_err()
    );
    b.gpu
        .add_edges(graph, &[(two, one, Edge::default())])
        .unwrap();
    assert!(matches!(
        b.gpu.instantiate(b.context, graph, 0),
        Err(Error::InvalidValue(_))
    ));
    b.gpu.remove_node(graph, two).unwrap();
    assert!(b.gpu.neighbours(graph, one, true).unwrap().is_empty());
    b.gpu.instantiate(b.context, graph, 0).unwrap();
}

#[test]
fn an_instantiated_graph_can_be_changed() {
    let b = bench();
    let stream = b.non_blocking();
    let graph = b.gpu.create_graph().unwrap();
    let set = b.gpu.add_node(graph, set32(b.base, 1), &[]).unwrap();
    let copy = b
        .gpu
        .add_node(graph, Op::Copy(Copy::line(b.base + 4, b.base, 4)), &[set])
        .unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    let run = || {
        b.gpu.launch_graph(exec, stream).unwrap();
        b.sync(stream).unwrap();
        b.peek32(b.base + 4)
    };
    assert_eq!(run(), 1);
    b.gpu.set_exec_node(exec, set, set32(b.base, 2)).unwrap();
    assert_eq!(run(), 2);
    assert!(b.gpu.set_exec_node(exec, copy, set32(b.base, 2)).is_err());
    b.gpu.enable_exec_node(exec, set, false).unwrap();
    assert_eq!(b.gpu.exec_node_enabled(exec, set), Ok(false));
    b.set32(stream, b.base, 3);
    assert_eq!(run(), 3);
    b.gpu.enable_exec_node(exec, set, true).unwrap();

    let other = b.gpu.clone_graph(graph).unwrap();
    let renamed: Vec<_> = b.gpu.graph(other).unwrap().nodes().collect();
    b.gpu.set_node(other, renamed[0], set32(b.base, 4)).unwrap();
    assert_eq!(b.gpu.update_exec(exec, other), Ok(Ok(())));
    assert_eq!(run(), 4);
    b.gpu.add_node(other, Op::Empty, &[]).unwrap();
    assert_eq!(
        b.gpu.update_exec(exec, other),
        Ok(Err(UpdateFailure {
            error: UpdateError::TopologyChanged,
            node: None
        }))
    );
    let kinds = b.gpu.create_graph().unwrap();
    let first = b.gpu.add_node(kinds, Op::Empty, &[]).unwrap();
    b.gpu.add_node(kinds, Op::Empty, &[first]).unwrap();
    let refused = b.gpu.update_exec(exec, kinds);
    assert!(matches!(
        refused,
        Ok(Err(UpdateFailure {
            error: UpdateError::NodeTypeChanged,
            node: Some(_)
        }))
    ));
}

#[test]
fn child_graphs_host_functions_and_events() {
    let b = bench();
    let stream = b.non_blocking();
    let child = b.gpu.create_graph().unwrap();
    let one = b.gpu.add_node(child, set32(b.base, 5), &[]).unwrap();
    b.gpu.add_node(child, Op::Host(3), &[one]).unwrap();
    let child = Box::new(b.gpu.graph(child).unwrap());
    let event = b.event();
    let graph = b.gpu.create_graph().unwrap();
    let nested = b
        .gpu
        .add_node(graph, Op::Child(Body::Fixed(child)), &[])
        .unwrap();
    let record = b
        .gpu
        .add_node(graph, Op::RecordEvent(event), &[nested])
        .unwrap();
    b.gpu
        .add_node(
            graph,
            Op::Copy(Copy::line(b.base + 4, b.base, 4)),
            &[record],
        )
        .unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    b.gpu.launch_graph(exec, stream).unwrap();
    let mut reached = b.gpu.event_fence(event).unwrap();
    assert!(stays_pending(&mut reached));
    let mut calls = Vec::new();
    b.gpu.take_host_calls(&mut calls);
    assert_eq!(
        calls,
        [HostCall {
            call: 3,
            stuck: None
        }]
    );
    b.gpu.host_func_done(3).unwrap();
    wait(&mut reached).unwrap();
    b.sync(stream).unwrap();
    assert_eq!(b.peek32(b.base + 4), 5);
    let dot = b.gpu.graph(graph).unwrap().dot(true);
    for part in [
        "digraph",
        "subgraph",
        "MEMSET",
        "HOST",
        "EVENT_RECORD",
        "->",
    ] {
        assert!(dot.contains(part), "{part} is not in {dot}");
    }
}

#[test]
fn a_fault_in_a_graph_ends_the_context() {
    let b = bench();
    let graph = b.gpu.create_graph().unwrap();
    let bad = b.gpu.add_node(graph, faulty(), &[]).unwrap();
    b.gpu.add_node(graph, set32(b.base, 1), &[bad]).unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    let stream = b.legacy();
    b.gpu.launch_graph(exec, stream).unwrap();
    let mut end = b.gpu.fence_all();
    wait(&mut end).unwrap();
    assert!(matches!(b.sync(stream), Err(Error::Stuck(_))));
    assert!(matches!(
        b.gpu.launch_graph(exec, stream),
        Err(Error::Stuck(_))
    ));
    assert_eq!(b.peek32(b.base), 0);
}

#[test]
fn a_conditional_node_runs_what_its_word_chooses() {
    let b = bench();
    let stream = b.non_blocking();
    let (word, out) = (b.base, b.base + 64);
    for (kind, size, value, wanted) in [
        (ConditionalKind::If, 1, 0, 0),
        (ConditionalKind::If, 1, 9, 1),
        (ConditionalKind::If, 2, 0, 2),
        (ConditionalKind::Switch, 3, 2, 3),
        (ConditionalKind::Switch, 3, 3, 0),
    ] {
        let graph = b.gpu.create_graph().unwrap();
        b.gpu.set_default(graph, word, value).unwrap();
        let (_, bodies) = b
            .gpu
            .add_conditional(graph, (word, kind, size), &[])
            .unwrap();
        for (index, body) in bodies.iter().enumerate() {
            b.gpu
                .add_node(*body, set32(out, index as u32 + 1), &[])
                .unwrap();
        }
        let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
        b.set32(stream, out, 0);
        b.gpu.launch_graph(exec, stream).unwrap();
        b.sync(stream).unwrap();
        assert_eq!(b.peek32(out), wanted, "{kind:?} of {size}, value {value}");
        b.gpu.destroy_graph(graph).unwrap();
        assert!(
            bodies.iter().all(|body| !b.gpu.has_graph(*body)),
            "bodies go along"
        );
    }
}

#[test]
fn a_loop_runs_until_its_word_is_cleared() {
    let b = bench();
    let stream = b.non_blocking();
    let (word, out) = (b.base, b.base + 64);
    let graph = b.gpu.create_graph().unwrap();
    b.gpu.set_default(graph, word, 1).unwrap();
    let shape = (word, ConditionalKind::While, 1);
    let (node, bodies) = b.gpu.add_conditional(graph, shape, &[]).unwrap();
    // The body clears the condition in its last node.
    let first = b.gpu.add_node(bodies[0], set32(out, 7), &[]).unwrap();
    b.gpu.add_node(bodies[0], set32(word, 0), &[first]).unwrap();
    b.gpu.add_node(graph, set32(out + 4, 8), &[node]).unwrap();
    let exec = b.gpu.instantiate(b.context, graph, 0).unwrap();
    for _ in 0..2 {
        b.gpu.launch_graph(exec, stream).unwrap();
        b.sync(stream).unwrap();
        assert_eq!((b.peek32(out), b.peek32(out + 4)), (7, 8));
    }
    assert!(
        b.gpu
            .add_conditional(graph, (word, ConditionalKind::While, 2), &[])
            .is_err()
    );
    // An endless loop does not hold the device's lock, and ends with the device.
    let endless = b.gpu.create_graph().unwrap();
    b.gpu.set_default(endless, word, 1).unwrap();
    b.gpu.add_conditional(endless, shape, &[]).unwrap();
    let exec = b.gpu.instantiate(b.context, endless, 0).unwrap();
    b.gpu.launch_graph(exec, stream).unwrap();
    assert!(!b.gpu.is_idle());
}

#[test]
fn child_graphs_are_opened_and_nodes_found_in_clones() {
    let b = bench();
    let stream = b.non_blocking();
    let inner = b.gpu.create_graph().unwrap();
    let leaf = b.gpu.add_node(inner, set32(b.base, 5), &[]).unwrap();
    let body = Body::Fixed(Box::new(b.gpu.graph(inner).unwrap()));
    let graph = b.gpu.create_graph().unwrap();
    let nested = b.gpu.add_node(graph, Op::Child(body), &[]).unwrap();
    let opened = b.gpu.open_child(graph, nested).unwrap();
    assert_eq!(b.gpu.open_child(graph, nested), Ok(opened));
    let copy = b.gpu.graph(opened).unwrap().nodes().next().unwrap();
    assert_ne!(copy, leaf);
    b.gpu.set_node(opened, copy, set32(b.base, 6)).unwrap();
    let clone = b.gpu.clone_graph(graph).unwrap();
    assert!(b.gpu.find_in_clone(nested, clone).unwrap().is_some());
    assert_eq!(b.gpu.find_in_clone(nested, graph), Ok(None));
    for each in [graph, clone] {
        b.set32(stream, b.base, 0);
        let exec = b.gpu.instantiate(b.context, each, 0).unwrap();
        b.gpu.launch_graph(exec, stream).unwrap();
        b.sync(stream).unwrap();
        assert_eq!(b.peek32(b.base), 6);
    }
}

#[test]
fn graphs_that_double_with_every_call_end_before_memory_does() {
    let b = bench();
    let mut graph = b.gpu.create_graph().unwrap();
    b.gpu.add_node(graph, Op::Empty, &[]).unwrap();
    for doubled in 0..20 {
        let Ok(inner) = b.gpu.graph(graph) else {
            // Doubled 15 times there are 2^16 graphs, which count as 2^20 nodes, plus their own
            // nodes.
            assert_eq!(doubled, 15);
            assert!(matches!(
                b.gpu.clone_graph(graph),
                Err(Error::Unsupported(_))
            ));
            return;
        };
        graph = b.gpu.create_graph().unwrap();
        for _ in 0..2 {
            let body = Body::Fixed(Box::new(inner.clone()));
            b.gpu.add_node(graph, Op::Child(body), &[]).unwrap();
        }
    }
    panic!("a graph of a million graphs");
}

/// How often something can be done before there is no room for it.
fn times(mut what: impl FnMut() -> Result<(), Error>) -> usize {
    for done in 0..1_000 {
        match what() {
            Ok(()) => {}
            Err(Error::OutOfMemory(_)) => return done,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("without end");
}

#[test]
fn copies_of_large_graphs_end_before_memory_does() {
    let b = bench();
    b.gpu.shared.with(|s| s.weight.units_max = 10_050);
    let large = b.gpu.create_graph().unwrap();
    for _ in 0..1_000 {
        b.gpu.add_node(large, Op::Empty, &[]).unwrap();
    }
    // Children of one parent; each node that holds one weighs a unit, too.
    let parent = b.gpu.create_graph().unwrap();
    let children = times(|| {
        let body = Body::Fixed(Box::new(b.gpu.graph(large)?));
        b.gpu.add_node(parent, Op::Child(body), &[]).map(drop)
    });
    assert_eq!(children, 8);
    assert!(b.gpu.add_node(parent, Op::Empty, &[]).is_ok());
    b.gpu.destroy_graph(parent).unwrap();
    // Clones: while one is made there are two.
    let mut clones = Vec::new();
    let count = times(|| b.gpu.clone_graph(large).map(|clone| clones.push(clone)));
    assert_eq!(count, 8);
    for clone in clones {
        b.gpu.destroy_graph(clone).unwrap();
    }
    // Executable graphs weigh twice as much.
    let mut execs = Vec::new();
    let mut instantiate = || {
        let exec = b.gpu.instantiate(b.context, large, 0)?;
        execs.push(exec);
        Ok(())
    };
    assert_eq!(times(&mut instantiate), 4);
    assert!(b.gpu.clone_graph(large).is_err());
    for exec in execs {
        b.gpu.destroy_exec(exec).unwrap();
    }
    assert!(b.gpu.clone_graph(large).is_ok());
}

#[test]
fn graphs_within_graphs_weigh_what_they_take() {
    let b = bench();
    b.gpu.shared.with(|s| s.weight.units_max = 20_000);
    // Doubled again and again: many graphs of few nodes each.
    let mut graph = b.gpu.create_graph().unwrap();
    b.gpu.add_node(graph, Op::Empty, &[]).unwrap();
    for _ in 0..8 {
        let outer = b.gpu.create_graph().unwrap();
        for _ in 0..2 {
            let body = Body::Fixed(Box::new(b.gpu.graph(graph).unwrap()));
            b.gpu.add_node(outer, Op::Child(body), &[]).unwrap();
        }
        b.gpu.destroy_graph(graph).unwrap();
        graph = outer;
    }
    // Some 511 graphs and 767 nodes each: by its nodes alone, each would weigh a tenth.
    let made = times(|| b.gpu.instantiate(b.context, graph, 0).map(drop));
    assert!((1..4).contains(&made), "{made}");
    b.gpu.destroy_graph(graph).unwrap();
}

#[test]
fn parameters_weigh_too() {
    let b = bench();
    b.gpu.shared.with(|s| s.weight.units_max = 1_000);
    let op = ValueOp {
        address: b.base,
        value: 1,
        wide: false,
        action: super::super::work::Action::Write,
    };
    let graph = b.gpu.create_graph().unwrap();
    let ops: Vec<ValueOp> = vec![op; 200];
    let mut nodes = Vec::new();
    let added = times(|| {
        let node = b.gpu.add_node(graph, Op::Batch(ops.clone().into()), &[]);
        node.map(|node| nodes.push(node))
    });
    assert!((20..130).contains(&added), "{added}");
    let larger: Vec<ValueOp> = vec![op; 20_000];
    assert!(
        b.gpu
            .set_node(graph, nodes[0], Op::Batch(larger.into()))
            .is_err()
    );
}

#[test]
fn edges_weigh_too() {
    let b = bench();
    b.gpu.shared.with(|s| s.weight.units_max = 2_000);
    let dense = b.gpu.create_graph().unwrap();
    let mut nodes: Vec<NodeId> = Vec::new();
    let added = times(|| {
        let node = b.gpu.add_node(dense, Op::Empty, &nodes)?;
        nodes.push(node);
        Ok(())
    });
    // Each edge is with both of its nodes.
    assert!((80..130).contains(&added), "{added}");
    b.gpu.destroy_graph(dense).unwrap();
    let graph = b.gpu.create_graph().unwrap();
    assert!(b.gpu.add_node(graph, Op::Empty, &[]).is_ok());
}
