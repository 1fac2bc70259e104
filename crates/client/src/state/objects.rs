//! Texture and surface objects: their numbers in messages, and their descriptions. Kernels use the
//! device's own numbers, so programs do too.

use outboard_api::CUresult;
use outboard_wire::doc::{RESOURCE_DESC_BYTES, RESOURCE_VIEW_DESC_BYTES};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Driver, HandleKind, wire_context};

#[derive(Clone)]
pub(crate) struct ObjectRecord {
    pub(crate) wire: u64,
    pub(crate) resource: [u8; RESOURCE_DESC_BYTES],
    pub(crate) view: Option<[u8; RESOURCE_VIEW_DESC_BYTES]>,
}

/// Objects by kind, context and number: textures and surfaces are numbered separately, in each
/// context.
#[derive(Default)]
pub(crate) struct Objects(Mutex<FxHashMap<(u8, u64, u64), ObjectRecord>>);

impl Objects {
    pub(crate) fn insert(&self, kind: HandleKind, number: u64, record: ObjectRecord) {
        self.0
            .lock()
            .insert((kind as u8, wire_context(), number), record);
    }

    pub(crate) fn get(&self, kind: HandleKind, number: u64) -> Option<ObjectRecord> {
        self.0
            .lock()
            .get(&(kind as u8, wire_context(), number))
            .cloned()
    }

    fn remove(&self, kind: HandleKind, number: u64) -> Option<ObjectRecord> {
        self.0.lock().remove(&(kind as u8, wire_context(), number))
    }

    /// Removes the objects of a context that is gone.
    pub(crate) fn remove_context(&self, context: u64) {
        self.0.lock().retain(|(_, c, _), _| *c != context);
    }
}

/// Functions that generated stubs use.
impl Driver {
    pub(crate) fn wire_texture(&self, object: u64) -> Result<u64, CUresult> {
        self.objects
            .get(HandleKind::Texture, object)
            .map(|o| o.wire)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn retire_texture(&self, object: u64) -> Result<u64, CUresult> {
        self.objects
            .remove(HandleKind::Texture, object)
            .map(|o| o.wire)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn retire_surface(&self, object: u64) -> Result<u64, CUresult> {
        self.objects
            .remove(HandleKind::Surface, object)
            .map(|o| o.wire)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}
