//! Nodes and edges of a graph: calls that read and add them.

use outboard_api::{
    CUresult,
    cuda::{CUgraph, CUgraphEdgeData, CUgraphNode},
};
use outboard_wire::{
    codec::{id_bytes, ids},
    limits::FRAME_BYTES_MAX,
    messages,
};

use super::super::{Done, InOut};
use crate::{
    log,
    state::{Driver, HandleKind, driver},
};
/// Most nodes in one message, so that two lists of them fit into a frame.
pub(in crate::calls) const NODES_MAX: usize = 1 << 15;
const _: () = assert!(2 * NODES_MAX * 8 < FRAME_BYTES_MAX);

/// Returns the nodes of an argument in the form of messages.
///
/// # Safety
/// `nodes` must be NULL or have `count` entries.
pub(in crate::calls) unsafe fn node_ids(
    driver: &Driver,
    nodes: *const CUgraphNode,
    count: usize,
) -> Result<Vec<u64>, CUresult> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if nodes.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if count > NODES_MAX {
        log::warn(format_args!(
            "a graph call that names {count} nodes is not supported: {NODES_MAX} are the most"
        ));
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: not NULL, so it has `count` entries by this function's contract.
    let nodes = unsafe { std::slice::from_raw_parts(nodes, count) };
    // Graph calls report an unknown handle as an invalid value.
    nodes
        .iter()
        .map(|n| {
            driver
                .wire_node(*n)
                .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)
        })
        .collect()
}

/// Writes as many nodes as there is room for, NULL after the last, and their number.
///
/// # Safety
/// `out` must be NULL, to ask for the number alone, or have as many entries as `room` says.
unsafe fn put_nodes(
    out: *mut CUgraphNode,
    room: InOut<'_, usize>,
    count: u64,
    nodes: &[u64],
) -> Done {
    if out.is_null() {
        return room.put(count as usize);
    }
    let places = room.get()?;
    for index in 0..places {
        let node = CUgraphNode(nodes.get(index).map_or(0, |n| *n as usize));
        // SAFETY: not NULL, and `index` is below the number that `room` says.
        unsafe { out.add(index).write(node) };
    }
    room.put(nodes.len().min(places))
}

/// Returns the number of nodes to request: none to learn their number.
fn wanted<T>(out: *const T, room: InOut<'_, usize>) -> Result<u32, CUresult> {
    match (out.is_null(), room.get()?) {
        (true, _) => Ok(0),
        // The driver refuses an array without room.
        (false, 0) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        (false, room) => Ok(room.min(NODES_MAX) as u32),
    }
}

/// Refuses a reply that was cut short: it must not pass for a whole one.
fn check_whole(count: u64, room: usize) -> Done {
    if count as usize > NODES_MAX && room > NODES_MAX {
        log::warn(format_args!(
            "a list of {count} nodes or edges of a graph is not supported: {NODES_MAX} are the most"
        ));
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(())
}

/// # Safety
/// `out` must be NULL or have as many entries as `room` says.
unsafe fn graph_nodes(
    graph: CUgraph,
    roots_only: u8,
    out: *mut CUgraphNode,
    room: InOut<'_, usize>,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    let nodes_max = wanted(out, room)?;
    let first_node = driver
        .handles
        .mint_range(HandleKind::Node, u64::from(nodes_max));
    let message = messages::GraphNodes {
        graph,
        roots_only,
        first_node,
        nodes_max,
    };
    let (count, nodes) = driver.call(&message, |reply| {
        (reply.count, ids(&reply.nodes).collect::<Vec<_>>())
    })?;
    driver.graphs.learn_shown(graph, nodes.iter().copied());
    check_whole(count, places(out, room)?)?;
    // SAFETY: `out` and `room` are as this function's contract says.
    unsafe { put_nodes(out, room, count, &nodes) }
}

/// Returns the number of entries to write: none into no array.
fn places<T>(out: *const T, room: InOut<'_, usize>) -> Result<usize, CUresult> {
    match out.is_null() {
        true => Ok(0),
        false => room.get(),
    }
}

pub(crate) unsafe fn cuGraphGetNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { graph_nodes(graph, 0, nodes, count) }
}

pub(crate) unsafe fn cuGraphGetRootNodes(
    graph: CUgraph,
    nodes: *mut CUgraphNode,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { graph_nodes(graph, 1, nodes, count) }
}

pub(crate) unsafe fn cuGraphGetEdges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { cuGraphGetEdges_v2(graph, from, to, std::ptr::null_mut(), count) }
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: InOut<'_, usize>,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    if from.is_null() != to.is_null() || from.is_null() && !edges.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let edges_max = wanted(from, count)?;
    // An edge has two ends, each of which may need a new handle.
    let first_node = driver
        .handles
        .mint_range(HandleKind::Node, 2 * u64::from(edges_max));
    let (known, starts, ends, told) = driver.call(
        &messages::GraphEdges {
            graph,
            first_node,
            edges_max,
        },
        |reply| {
            (
                reply.count,
                ids(&reply.from).collect::<Vec<_>>(),
                ids(&reply.to).collect::<Vec<_>>(),
                told_edges(&reply.edges),
            )
        },
    )?;
    driver
        .graphs
        .learn_shown(graph, starts.iter().chain(&ends).copied());
    let room = places(from, count)?;
    check_whole(known, room)?;
    let mut same = count.get()?;
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe {
        put_edges(edges, from, room, &told)?;
        put_nodes(from, count, known, &starts)?;
        put_nodes(to, InOut::of(&mut same), known, &ends)
    }
}

/// Returns the data of edges; nothing if all edges only order two nodes.
pub(in crate::calls) fn told_edges(bytes: &[u8]) -> Vec<CUgraphEdgeData> {
    let (records, _) = bytes.as_chunks::<8>();
    let edges = records.iter().map(
        |[from_port, to_port, kind, reserved @ ..]| CUgraphEdgeData {
            from_port: *from_port,
            to_port: *to_port,
            kind: *kind,
            reserved: *reserved,
        },
    );
    edges.collect()
}

/// Writes the data of edges. If an edge has data, a program that asks for the nodes alone is
/// refused.
///
/// # Safety
/// `edges` must be NULL or have `room` entries.
unsafe fn put_edges(
    edges: *mut CUgraphEdgeData,
    nodes: *const CUgraphNode,
    room: usize,
    told: &[CUgraphEdgeData],
) -> Done {
    if edges.is_null() {
        return match nodes.is_null() || told.is_empty() {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_LOSSY_QUERY),
        };
    }
    for index in 0..room {
        let edge = told.get(index).copied().unwrap_or_default();
        // SAFETY: not NULL, and `index` is below `room`.
        unsafe { edges.add(index).write(edge) };
    }
    Ok(())
}

/// # Safety
/// `out` and `edges` must be NULL or have as many entries as `room` says.
unsafe fn neighbours(
    node: CUgraphNode,
    dependents: u8,
    out: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    room: InOut<'_, usize>,
) -> Done {
    let driver = driver()?;
    let node = driver.wire_node(node)?;
    let graph = driver.graphs.graph_of(node)?;
    if out.is_null() && !edges.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let nodes_max = wanted(out, room)?;
    let first_node = driver
        .handles
        .mint_range(HandleKind::Node, u64::from(nodes_max));
    let message = messages::GraphNodeNeighbours {
        node,
        dependents,
        first_node,
        nodes_max,
    };
    let (count, nodes, told) = driver.call(&message, |reply| {
        let nodes = ids(&reply.nodes).collect::<Vec<_>>();
        (reply.count, nodes, told_edges(&reply.edges))
    })?;
    driver.graphs.learn_shown(graph, nodes.iter().copied());
    let places = places(out, room)?;
    check_whole(count, places)?;
    // SAFETY: `out`, `edges` and `room` are as this function's contract says.
    unsafe {
        put_edges(edges, out, places, &told)?;
        put_nodes(out, room, count, &nodes)
    }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { neighbours(node, 0, nodes, std::ptr::null_mut(), count) }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies_v2(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { neighbours(node, 0, nodes, edges, count) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { neighbours(node, 1, nodes, std::ptr::null_mut(), count) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes_v2(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    edges: *mut CUgraphEdgeData,
    count: InOut<'_, usize>,
) -> Done {
    // SAFETY: arrays with `*count` entries, or NULL: the driver API asks it of its callers.
    unsafe { neighbours(node, 1, nodes, edges, count) }
}

pub(crate) unsafe fn cuGraphAddDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    unsafe { cuGraphAddDependencies_v2(graph, from, to, std::ptr::null(), count) }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    let (from, to, edges) = unsafe {
        (
            node_ids(driver, from, count)?,
            node_ids(driver, to, count)?,
            edge_list(edges, count),
        )
    };
    driver.add_dependencies(graph, &from, &to, &edges)
}

pub(crate) unsafe fn cuGraphRemoveDependencies(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    unsafe { cuGraphRemoveDependencies_v2(graph, from, to, std::ptr::null(), count) }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    let (from, to, edges) = unsafe {
        (
            node_ids(driver, from, count)?,
            node_ids(driver, to, count)?,
            edge_list(edges, count),
        )
    };
    if from.is_empty() {
        return Ok(());
    }
    if driver.graph_memory.is_in(graph) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let message = messages::GraphRemoveDependencies {
        graph,
        from: &id_bytes(&from),
        to: &id_bytes(&to),
        edges: &edge_bytes(&edges),
    };
    driver.call(&message, |_| ())
}

/// Encodes the data of edges for a message.
pub(in crate::calls) fn edge_bytes(edges: &[CUgraphEdgeData]) -> Vec<u8> {
    let bytes = edges.iter().flat_map(|e| {
        let [a, b, c, d, f] = e.reserved;
        [e.from_port, e.to_port, e.kind, a, b, c, d, f]
    });
    bytes.collect()
}

/// Returns the data of each edge; nothing if all edges only order two nodes.
///
/// # Safety
/// `edges` must be NULL or have `count` entries.
pub(in crate::calls) unsafe fn edge_list(
    edges: *const CUgraphEdgeData,
    count: usize,
) -> Vec<CUgraphEdgeData> {
    if edges.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: not NULL, so it has `count` entries by this function's contract.
    let edges = unsafe { std::slice::from_raw_parts(edges, count) };
    if edges.iter().all(|e| *e == CUgraphEdgeData::default()) {
        return Vec::new();
    }
    edges.to_vec()
}

impl Driver {
    pub(in crate::calls) fn add_dependencies(
        &self,
        graph: u64,
        from: &[u64],
        to: &[u64],
        edges: &[CUgraphEdgeData],
    ) -> Done {
        if from.is_empty() {
            return Ok(());
        }
        self.call(
            &messages::GraphAddDependencies {
                graph,
                from: &id_bytes(from),
                to: &id_bytes(to),
                edges: &edge_bytes(edges),
            },
            |_| (),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_and_padded_as_the_manual_says() {
        let mut out = [CUgraphNode(99); 4];
        let mut room = 3;
        // SAFETY: room for three entries.
        unsafe { put_nodes(out.as_mut_ptr(), InOut::of(&mut room), 2, &[5, 6]) }.expect("a count");
        assert_eq!(
            (room, out),
            (
                2,
                [
                    CUgraphNode(5),
                    CUgraphNode(6),
                    CUgraphNode(0),
                    CUgraphNode(99)
                ]
            )
        );
        let mut room = 1;
        // SAFETY: room for one entry.
        unsafe { put_nodes(out.as_mut_ptr(), InOut::of(&mut room), 2, &[7]) }.expect("a count");
        assert_eq!((room, out[0], out[1]), (1, CUgraphNode(7), CUgraphNode(6)));
        let mut room = 0;
        // SAFETY: NULL asks for the count alone.
        unsafe { put_nodes(std::ptr::null_mut(), InOut::of(&mut room), 2, &[]) }.expect("a count");
        assert_eq!(room, 2);
    }

    #[test]
    fn edges_have_data_only_if_one_is_not_plain() {
        let plain = [CUgraphEdgeData::default(); 2];
        let programmatic = [
            CUgraphEdgeData::default(),
            CUgraphEdgeData {
                from_port: 1,
                kind: 1,
                ..Default::default()
            },
        ];
        // SAFETY: arrays of as many entries as said.
        let lists = unsafe {
            [
                edge_list(std::ptr::null(), 2),
                edge_list(plain.as_ptr(), 2),
                edge_list(programmatic.as_ptr(), 1),
                edge_list(programmatic.as_ptr(), 2),
            ]
        };
        assert_eq!(lists[..3], [const { Vec::new() }; 3]);
        assert_eq!(lists[3], programmatic);
        assert_eq!(told_edges(&edge_bytes(&programmatic)), programmatic);
    }
}
