//! Memory that graphs allocate and free, managed by the client alone, as that of pools is.
//!
//! Each allocating node has memory of its own, from its creation until its graph, the graph's
//! executable graph and the program have all released it. The server only maps the memory; for it
//! such nodes are empty and keep the order. As in CUDA, a graph that allocates cannot be cloned, be
//! part of another graph, or be instantiated twice at a time, so the holders are always known.

use outboard_api::CUresult;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{AllocationKind, Driver};

type Done = Result<(), CUresult>;

#[derive(Default)]
pub(crate) struct GraphMemory(Mutex<BlockTable>);

#[derive(Default)]
struct BlockTable {
    /// By address.
    blocks: FxHashMap<u64, Block>,
    graphs: FxHashMap<u64, Nodes>,
    /// By executable graph: its graph, the nodes at instantiation, and whether it frees memory at
    /// its next launch.
    execs: FxHashMap<u64, (u64, Nodes, bool)>,
    used_high: u64,
    reserved_high: u64,
}

struct Block {
    bytes: u64,
    device: i32,
    graph: u64,
    /// A launch allocated it, and it has not been freed since.
    live: bool,
    /// An executable graph was made of its graph.
    reserved: bool,
}

/// The addresses that nodes of a graph allocate and free.
#[derive(Default, Clone)]
struct Nodes {
    allocates: Vec<u64>,
    frees: Vec<u64>,
}

/// `CUgraphMem_attribute`
const USED_CURRENT: u32 = 0;
const USED_HIGH: u32 = 1;
const RESERVED_CURRENT: u32 = 2;
const RESERVED_HIGH: u32 = 3;

impl BlockTable {
    /// Returns the bytes held by executable graphs, all of which count as used and as reserved.
    fn reserved(&self, device: i32) -> u64 {
        let of_device = self
            .blocks
            .values()
            .filter(|b| b.reserved && b.device == device);
        of_device.map(|b| b.bytes).sum()
    }

    /// Removes blocks that are no longer held, and returns them.
    fn abandoned(&mut self) -> Vec<u64> {
        let BlockTable {
            blocks,
            graphs,
            execs,
            ..
        } = self;
        let held = |block: &Block| {
            block.live
                || graphs.contains_key(&block.graph)
                || execs.values().any(|(graph, ..)| *graph == block.graph)
        };
        let gone: Vec<u64> = blocks
            .iter()
            .filter(|(_, block)| !held(block))
            .map(|(address, _)| *address)
            .collect();
        for address in &gone {
            blocks.remove(address);
        }
        gone
    }
}

impl GraphMemory {
    /// Records that a node of the graph allocates this memory.
    pub(crate) fn allocates(&self, graph: u64, address: u64, bytes: u64, device: i32) {
        let mut table = self.0.lock();
        let block = Block {
            bytes,
            device,
            graph,
            live: false,
            reserved: false,
        };
        table.blocks.insert(address, block);
        table
            .graphs
            .entry(graph)
            .or_default()
            .allocates
            .push(address);
    }

    /// Records that a node of the graph frees this memory, which a node of some graph allocates;
    /// once per graph.
    pub(crate) fn frees(&self, graph: u64, address: u64) -> Done {
        let mut table = self.0.lock();
        let nodes = table.graphs.entry(graph).or_default();
        let twice = nodes.frees.contains(&address);
        let known = table.blocks.contains_key(&address);
        if !known || twice {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        table.graphs.entry(graph).or_default().frees.push(address);
        Ok(())
    }

    /// Takes back [`frees`](Self::frees): the graph got no such node.
    pub(crate) fn does_not_free(&self, graph: u64, address: u64) {
        if let Some(nodes) = self.0.lock().graphs.get_mut(&graph) {
            nodes.frees.retain(|freed| *freed != address);
        }
    }

    /// Gives the memory of a graph to the one that it became part of.
    pub(crate) fn moves(&self, graph: u64, owner: u64) {
        let mut table = self.0.lock();
        let Some(moved) = table.graphs.remove(&graph) else {
            return;
        };
        for block in table.blocks.values_mut().filter(|b| b.graph == graph) {
            block.graph = owner;
        }
        let nodes = table.graphs.entry(owner).or_default();
        nodes.allocates.extend(moved.allocates);
        nodes.frees.extend(moved.frees);
    }

    /// Returns whether a graph has nodes that allocate or free.
    pub(crate) fn is_in(&self, graph: u64) -> bool {
        let table = self.0.lock();
        let nodes = table.graphs.get(&graph);
        nodes.is_some_and(|n| !n.allocates.is_empty() || !n.frees.is_empty())
    }

    pub(crate) fn is_in_exec(&self, exec: u64) -> bool {
        self.0.lock().execs.contains_key(&exec)
    }

    /// Returns whether a graph that allocates already has an executable graph.
    pub(crate) fn is_instantiated(&self, graph: u64) -> bool {
        let table = self.0.lock();
        let allocates = table.graphs.get(&graph);
        allocates.is_some_and(|nodes| !nodes.allocates.is_empty())
            && table.execs.values().any(|(known, ..)| *known == graph)
    }

    pub(crate) fn instantiated(&self, exec: u64, graph: u64, frees_at_launch: bool) {
        let mut table = self.0.lock();
        let Some(nodes) = table.graphs.get(&graph).cloned() else {
            return;
        };
        for address in &nodes.allocates {
            if let Some(block) = table.blocks.get_mut(address) {
                block.reserved = true;
                let device = block.device;
                let reserved = table.reserved(device);
                table.reserved_high = table.reserved_high.max(reserved);
                table.used_high = table.used_high.max(reserved);
            }
        }
        table.execs.insert(exec, (graph, nodes, frees_at_launch));
    }

    /// Records a launch. Memory that it allocates must be free, and memory that it frees must be
    /// allocated.
    pub(crate) fn launch(&self, exec: u64) -> Done {
        let mut table = self.0.lock();
        let Some((_, nodes, frees_at_launch)) = table.execs.get(&exec) else {
            return Ok(());
        };
        let (nodes, frees_at_launch) = (nodes.clone(), *frees_at_launch);
        let is_live =
            |table: &BlockTable, address| table.blocks.get(address).is_some_and(|b| b.live);
        let taken = nodes.allocates.iter().any(|a| is_live(&table, a));
        let outside = nodes.frees.iter().filter(|a| !nodes.allocates.contains(a));
        let missing = outside.clone().any(|a| !is_live(&table, a));
        if taken && !frees_at_launch || missing {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for address in &nodes.allocates {
            if let Some(block) = table.blocks.get_mut(address) {
                block.live = true;
            }
        }
        for address in &nodes.frees {
            if let Some(block) = table.blocks.get_mut(address) {
                block.live = false;
            }
        }
        Ok(())
    }

    /// Frees memory that a launch left allocated, for the program.
    fn free(&self, address: u64) -> Done {
        let mut table = self.0.lock();
        let block = table.blocks.get_mut(&address).filter(|block| block.live);
        block.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.live = false;
        Ok(())
    }

    pub(crate) fn attribute(&self, device: i32, attribute: u32) -> Result<u64, CUresult> {
        let table = self.0.lock();
        match attribute {
            USED_CURRENT | RESERVED_CURRENT => Ok(table.reserved(device)),
            USED_HIGH => Ok(table.used_high),
            RESERVED_HIGH => Ok(table.reserved_high),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Resets a high-water mark, which can only be set to 0.
    pub(crate) fn set_attribute(&self, attribute: u32, value: u64) -> Done {
        let mut table = self.0.lock();
        let mark = match attribute {
            USED_HIGH => &mut table.used_high,
            RESERVED_HIGH => &mut table.reserved_high,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        if value != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        *mark = 0;
        Ok(())
    }
}

impl Driver {
    /// Allocates memory for a node of a graph.
    pub(crate) fn graph_allocate(&self, bytes: u64) -> Result<u64, CUresult> {
        self.allocate(bytes, AllocationKind::Graph)
    }

    /// `cuMemFree` and `cuMemFreeAsync` of memory that a graph allocated.
    pub(crate) fn graph_free(&self, address: u64) -> Done {
        self.graph_memory.free(address)?;
        self.give_back_graph_memory();
        Ok(())
    }

    pub(crate) fn graph_memory_gone(&self, graph: u64) {
        self.graph_memory.0.lock().graphs.remove(&graph);
        self.give_back_graph_memory();
    }

    pub(crate) fn graph_memory_exec_gone(&self, exec: u64) {
        self.graph_memory.0.lock().execs.remove(&exec);
        self.give_back_graph_memory();
    }

    /// Frees memory that no graph holds. The server unmaps it after the work sent before.
    fn give_back_graph_memory(&self) {
        for address in self.graph_memory.0.lock().abandoned() {
            // A lost session has unmapped everything, and a destroyed context what was its own.
            let _ = self.release_of_graph(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_launch_leaves_must_be_freed_before_the_next() {
        let memory = GraphMemory::default();
        memory.allocates(1, 64, 100, 0);
        memory.allocates(1, 128, 10, 0);
        memory.frees(1, 64).expect("known");
        assert!(memory.frees(1, 64).is_err(), "twice");
        assert!(memory.frees(1, 65).is_err(), "unknown");
        memory.does_not_free(1, 64);
        memory.frees(1, 64).expect("it was taken back");
        memory.instantiated(9, 1, false);
        assert!(memory.is_instantiated(1));
        memory.launch(9).expect("all is free");
        assert_eq!(memory.attribute(0, USED_CURRENT), Ok(110));
        assert_eq!(memory.attribute(0, USED_HIGH), Ok(110));
        assert_eq!(memory.attribute(0, RESERVED_CURRENT), Ok(110));
        assert!(memory.launch(9).is_err(), "128 is still allocated");
        memory.free(128).expect("live");
        assert!(memory.free(128).is_err(), "freed");
        memory.launch(9).expect("all is free again");
    }

    #[test]
    fn memory_stays_until_all_have_released_it() {
        let memory = GraphMemory::default();
        memory.allocates(1, 64, 100, 0);
        memory.instantiated(9, 1, true);
        memory.launch(9).expect("free");
        memory.launch(9).expect("freed by the launch");
        let mut table = memory.0.lock();
        table.graphs.remove(&1);
        assert!(table.abandoned().is_empty());
        table.execs.remove(&9);
        assert!(table.abandoned().is_empty(), "the program has it");
        table.blocks.get_mut(&64).expect("known").live = false;
        assert_eq!(table.abandoned(), [64]);
    }
}
