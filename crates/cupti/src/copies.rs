//! Copies between host and device, as the program made them. The server does not see which kind of
//! the program's memory a copy used, and a copy may have been sent in pieces.

use std::{collections::BTreeMap, ffi::c_void};

use outboard_api::CUresult;
use outboard_wire::doc::{Activity, ActivityWhat};
use parking_lot::Mutex;

use crate::driver;

/// Most copies whose kind of memory is remembered until their work is taken.
const COPIES_MAX: usize = 1 << 18;
/// `CUPTI_ACTIVITY_MEMCPY_KIND_*`, `CUPTI_ACTIVITY_MEMORY_KIND_*`.
const TO_DEVICE: u8 = 1;
const TO_HOST: u8 = 2;
const PAGEABLE: u8 = 1;
const PINNED: u8 = 2;
/// CUPTI's numbers of `cudaMemcpy` and `cudaMemcpyAsync`, with and without per-thread default
/// streams. Their first parameters are destination and source.
const COPIES: [u32; 4] = [31, 41, 215, 225];
const POINTER_ATTRIBUTE_MEMORY_TYPE: u32 = 2;
const MEMORY_TYPE_HOST: u32 = 1;
const MEMORY_TYPE_DEVICE: u32 = 2;

/// Kind of the host memory that each call copied from or to, by the call's number.
static HOST_MEMORY: Mutex<BTreeMap<u32, u8>> = Mutex::new(BTreeMap::new());

/// Records which kind of host memory a call of the runtime copies.
///
/// # Safety
/// `params` is NULL or the parameters of the runtime's call `cbid`, as CUPTI's headers declare
/// them.
pub(crate) unsafe fn note(cbid: u32, params: *const c_void, call: u32) {
    if !COPIES.contains(&cbid) || params.is_null() {
        return;
    }
    // SAFETY: the caller's promise: both begin with two pointers.
    let ends = unsafe { params.cast::<[u64; 2]>().read() };
    let host = ends.into_iter().find_map(kind_of_host);
    if let Some(kind) = host {
        let mut copies = HOST_MEMORY.lock();
        if copies.len() >= COPIES_MAX {
            copies.pop_first();
        }
        copies.insert(call, kind);
    }
}

/// Returns the kind of memory at an address, or `None` if it is not host memory.
fn kind_of_host(address: u64) -> Option<u8> {
    let (status, kind) = driver::pointer_attribute(POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    match (status, kind) {
        (CUresult::CUDA_SUCCESS, MEMORY_TYPE_DEVICE) => None,
        (CUresult::CUDA_SUCCESS, MEMORY_TYPE_HOST) => Some(PINNED),
        (CUresult::CUDA_SUCCESS, _) => None,
        _ => Some(PAGEABLE),
    }
}

/// Replaces the kind of a copy's host memory by that of the program's memory.
pub(crate) fn with_host_memory(mut activity: Activity) -> Activity {
    if let ActivityWhat::Copy {
        kind,
        source,
        destination,
        ..
    } = &mut activity.what
    {
        let host = HOST_MEMORY.lock().remove(&activity.call);
        match (*kind, host) {
            (TO_DEVICE, Some(host)) => *source = host,
            (TO_HOST, Some(host)) => *destination = host,
            _ => {}
        }
    }
    activity
}

/// Appends a piece of a copy to the pieces before it. Returns false if it belongs to another copy.
pub(crate) fn join(whole: &mut Activity, piece: &Activity) -> bool {
    let is_same = (whole.call, whole.stream, whole.graph, whole.graph_node)
        == (piece.call, piece.stream, piece.graph, piece.graph_node);
    let (
        ActivityWhat::Copy { bytes, kind, .. },
        ActivityWhat::Copy {
            bytes: more,
            kind: same,
            ..
        },
    ) = (&mut whole.what, &piece.what)
    else {
        return false;
    };
    let is_joined = is_same && whole.graph == 0 && kind == same;
    if is_joined {
        *bytes = bytes.saturating_add(*more);
        whole.start_ns = whole.start_ns.min(piece.start_ns);
        whole.end_ns = whole.end_ns.max(piece.end_ns);
    }
    is_joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(call: u32, kind: u8, bytes: u64, start_ns: u64, end_ns: u64) -> Activity {
        Activity {
            call,
            device: 0,
            context: 1,
            stream: 7,
            start_ns,
            end_ns,
            graph: 0,
            graph_node: 0,
            what: ActivityWhat::Copy {
                bytes,
                kind,
                source: PINNED,
                destination: 3,
                flags: 1,
            },
        }
    }

    #[test]
    fn pieces_of_one_call_are_one_copy() {
        let mut whole = copy(5, TO_DEVICE, 100, 10, 20);
        assert!(join(&mut whole, &copy(5, TO_DEVICE, 50, 25, 40)));
        assert_eq!(whole, copy(5, TO_DEVICE, 150, 10, 40));
        assert!(!join(&mut whole, &copy(6, TO_DEVICE, 50, 25, 40)));
        assert!(!join(&mut whole, &copy(5, TO_HOST, 50, 25, 40)));
        let in_graph = Activity {
            graph: 3,
            ..copy(5, TO_DEVICE, 1, 1, 2)
        };
        assert!(!join(&mut in_graph.clone(), &in_graph));
    }
}
