//! Launches, checked as a driver checks them, and occupancy by the rules of the compute capability.

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure};
use outboard_ptx::{
    device::{AT_BLOCK_START, Early, Edge, LAUNCH_COMPLETION, Launch, PROGRAMMATIC},
    lower,
};
use outboard_wire::{doc, messages};

use super::{
    Soft, card,
    modules::block_threads_max,
    wait::{failure, invalid},
};

/// The size of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchShape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub(super) shared_bytes: u32,
    pub(super) cooperative: bool,
}

/// Requests in a launch's attributes beyond its size.
#[derive(Default)]
struct Asked {
    cooperative: bool,
    /// The kernel may begin before its stream's earlier kernels are done.
    serialized: bool,
    /// Events to record, and the edges from the kernel to captured work that waits for them.
    events: Vec<(u64, Edge)>,
}

impl Soft {
    pub(super) fn launch(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::Launch<'_>,
    ) -> Result<(), Failure> {
        let asked = read_attributes(m.attributes)?;
        let shape = LaunchShape {
            grid: [m.grid_x, m.grid_y, m.grid_z],
            block: [m.block_x, m.block_y, m.block_z],
            shared_bytes: m.shared_bytes,
            cooperative: asked.cooperative,
        };
        let stream = self.stream(cx, m.stream)?;
        let events = asked.events.iter().map(|(id, edge)| {
            let event = self.events.get(*id)?;
            Ok((*event, *edge))
        });
        let early = Early {
            serialized: asked.serialized,
            events: events.collect::<Result<_, Failure>>()?,
        };
        let launch = self.prepare(m.kernel, shape, m.params)?;
        self.touched = true;
        self.heap_used |= self.kernel(m.kernel)?.0.uses_heap();
        self.gpu.launch(stream, launch, &early).map_err(failure)
    }

    /// Makes the checks that a driver makes at the call.
    pub(super) fn prepare(
        &self,
        kernel: u64,
        shape: LaunchShape,
        params: &[u8],
    ) -> Result<Launch, Failure> {
        let (facts, state) = self.facts(kernel)?;
        let name = state.code.name();
        let module = &self.kernel(kernel)?.0.module;
        check_extents(name, shape)?;
        check_threads(name, shape.block, facts)?;
        let LaunchShape {
            grid,
            block,
            shared_bytes,
            cooperative,
        } = shape;
        if shared_bytes > state.dynamic_shared_max {
            return Err(invalid(format!(
                "{name}: {shared_bytes} bytes of dynamic shared memory; at most {} are allowed",
                state.dynamic_shared_max
            )));
        }
        if params.len() < facts.param_bytes as usize {
            return Err(invalid(format!(
                "{name}: {} bytes of parameters; it takes {}",
                params.len(),
                facts.param_bytes
            )));
        }
        if cooperative {
            self.check_resident(name, shape, facts)?;
        }
        // As a GPU's driver, which makes room for local memory at the launch.
        outboard_budget::reserve_alone(module.block_bytes(facts, block, shared_bytes))?;
        Ok(Launch {
            code: state.code.clone(),
            grid,
            block,
            shared_bytes,
            cooperative,
            params: params[..facts.param_bytes as usize].into(),
        })
    }

    /// Refuses a cooperative grid of which not all blocks would run at once.
    fn check_resident(
        &self,
        name: &str,
        shape: LaunchShape,
        facts: &lower::Kernel,
    ) -> Result<(), Failure> {
        let threads = shape.block.iter().product::<u32>();
        let resident =
            u64::from(self.blocks_per_multiprocessor(facts, threads, shape.shared_bytes))
                * self.threads as u64;
        let blocks = shape.grid.iter().map(|n| u64::from(*n)).product::<u64>();
        if blocks <= resident {
            return Ok(());
        }
        Err(Failure::new(
            CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            format!("{name}: {blocks} cooperative blocks; {resident} are resident at once"),
        ))
    }

    pub(super) fn occupancy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::Occupancy<'_>,
    ) -> Result<messages::OccupancyReply, Failure> {
        let (facts, state) = self.facts(m.kernel)?;
        let threads = u32::try_from(m.block_size)
            .ok()
            .filter(|n| (1..=card::BLOCK_THREADS_MAX).contains(n));
        let threads =
            || threads.ok_or_else(|| invalid(format!("blocks of {} threads", m.block_size)));
        let value = match m.query {
            doc::OCCUPANCY_BLOCKS_PER_MULTIPROCESSOR => {
                let shared = u32::try_from(m.shared_bytes).unwrap_or(u32::MAX);
                self.blocks_per_multiprocessor(facts, threads()?, shared)
                    .into()
            }
            doc::OCCUPANCY_SHARED_BYTES_PER_BLOCK => {
                threads()?;
                // More could not be launched.
                let most = u64::from(state.dynamic_shared_max);
                self.shared_for_blocks(facts, m.shared_bytes)?.min(most)
            }
            doc::OCCUPANCY_ACTIVE_CLUSTERS | doc::OCCUPANCY_CLUSTER_SIZE_MAX => {
                return Err(Failure::unsupported("clusters"));
            }
            query => return Err(invalid(format!("occupancy query {query}"))),
        };
        Ok(messages::OccupancyReply { value })
    }
}

/// Refuses extents beyond the device's.
fn check_extents(name: &str, shape: LaunchShape) -> Result<(), Failure> {
    let (grid, block) = (shape.grid, shape.block);
    let within = |extent: [u32; 3], max: [u32; 3]| {
        extent.iter().zip(max).all(|(n, max)| (1..=max).contains(n))
    };
    if !within(grid, card::GRID_EXTENT_MAX) || !within(block, card::BLOCK_EXTENT_MAX) {
        return Err(invalid(format!(
            "{name}: a grid of {grid:?} blocks of {block:?} threads"
        )));
    }
    Ok(())
}

/// Refuses blocks of too many threads, for the device or for the kernel.
fn check_threads(name: &str, block: [u32; 3], facts: &lower::Kernel) -> Result<(), Failure> {
    let threads = block.iter().product::<u32>();
    if threads > card::BLOCK_THREADS_MAX {
        return Err(invalid(format!(
            "{name}: blocks of {threads} threads; at most {} are allowed",
            card::BLOCK_THREADS_MAX
        )));
    }
    let most = block_threads_max(facts);
    if threads > most {
        return Err(invalid(format!(
            "{name}: blocks of {threads} threads; it was compiled for {most}"
        )));
    }
    if facts
        .required_threads
        .is_some_and(|required| required != block)
    {
        return Err(invalid(format!(
            "{name}: blocks of {block:?} threads; it was compiled for exactly {:?}",
            facts.required_threads.unwrap_or_default()
        )));
    }
    Ok(())
}

/// Reads the attributes of `cuLaunchKernelEx`. Attributes that only tune performance are ignored.
fn read_attributes(bytes: &[u8]) -> Result<Asked, Failure> {
    let (records, rest) = bytes.as_chunks::<{ doc::LAUNCH_ATTRIBUTE_BYTES }>();
    if !rest.is_empty() {
        return Err(invalid("launch attributes that are cut"));
    }
    let mut asked = Asked::default();
    for record in records {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&record[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        match word(0) {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => asked.cooperative = word(8) != 0,
            id @ (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
            | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) => {
                // The value of a programmatic event: the event, flags, triggerAtBlockStart.
                let edge = match (id, word(20)) {
                    (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, 0) => PROGRAMMATIC,
                    (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, _) => AT_BLOCK_START,
                    _ => LAUNCH_COMPLETION,
                };
                let event = u64::from(word(8)) | u64::from(word(12)) << 32;
                asked.events.push((event, edge));
            }
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                asked.serialized = word(8) != 0;
            }
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            | CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION => {
                if [word(8), word(12), word(16)].iter().any(|n| *n > 1) {
                    return Err(Failure::unsupported("clusters"));
                }
            }
            CU_LAUNCH_ATTRIBUTE_IGNORE
            | CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
            | CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | CU_LAUNCH_ATTRIBUTE_PRIORITY
            | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            | CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING => {}
            id => {
                return Err(Failure::unsupported(&format!("launch attribute {id}")));
            }
        }
    }
    Ok(asked)
}

/// Units in which shared memory is allocated to blocks, and registers to warps.
const SHARED_UNIT_BYTES: u32 = 128;
const REGISTER_UNIT: u32 = 256;
/// Each of the four schedulers has a quarter of the registers.
const SCHEDULERS: u32 = 4;

impl Soft {
    /// Returns how many blocks are resident on one multiprocessor.
    fn blocks_per_multiprocessor(
        &self,
        facts: &outboard_ptx::lower::Kernel,
        threads: u32,
        dynamic_shared: u32,
    ) -> u32 {
        if threads > block_threads_max(facts) {
            return 0;
        }
        let sm = self.capability.facts();
        let warps = threads.div_ceil(card::WARP_THREADS);
        let by_warps = sm.sm_threads / card::WARP_THREADS / warps;
        let warp_registers =
            (facts.registers.max(1) * card::WARP_THREADS).next_multiple_of(REGISTER_UNIT);
        let register_warps = card::SM_REGISTERS / warp_registers / SCHEDULERS * SCHEDULERS;
        let by_registers = register_warps / warps;
        let shared = facts.shared_bytes.saturating_add(dynamic_shared);
        if shared > sm.shared_optin_bytes {
            return 0;
        }
        let shared = (shared + sm.shared_reserved_bytes).next_multiple_of(SHARED_UNIT_BYTES);
        let by_shared = sm.sm_shared_bytes.checked_div(shared).unwrap_or(u32::MAX);
        sm.sm_blocks.min(by_warps).min(by_registers).min(by_shared)
    }

    /// Returns the dynamic shared memory that each of `blocks` resident blocks can have, in bytes.
    fn shared_for_blocks(
        &self,
        facts: &outboard_ptx::lower::Kernel,
        blocks: u64,
    ) -> Result<u64, Failure> {
        let sm = self.capability.facts();
        if !(1..=u64::from(sm.sm_blocks)).contains(&blocks) {
            return Err(invalid(format!("{blocks} blocks on a multiprocessor")));
        }
        let each = sm.sm_shared_bytes / blocks as u32 / SHARED_UNIT_BYTES * SHARED_UNIT_BYTES;
        let each = each.saturating_sub(sm.shared_reserved_bytes);
        Ok(each
            .min(sm.shared_optin_bytes)
            .saturating_sub(facts.shared_bytes)
            .into())
    }
}
