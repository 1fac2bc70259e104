//! Tables from the client's handles to the server's objects.

use rustc_hash::FxHashMap;

use crate::Failure;

/// Objects of one kind in a session.
pub const OBJECTS_MAX: usize = 1 << 22;

/// A table from the client's numbers to the device's own objects, for one kind of handle.
pub struct HandleTable<T> {
    kind: &'static str,
    objects: FxHashMap<u64, T>,
}

impl<T> HandleTable<T> {
    pub fn new(kind: &'static str) -> HandleTable<T> {
        HandleTable {
            kind,
            objects: FxHashMap::default(),
        }
    }

    /// Binds a number that the client chose. A number already in use is the client's fault.
    pub fn insert(&mut self, id: u64, object: T) -> Result<(), Failure> {
        use outboard_api::CUresult;
        if self.objects.len() >= OBJECTS_MAX {
            let message = format!("more than {OBJECTS_MAX} objects of kind {}", self.kind);
            return Err(Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, message));
        }
        if self.objects.contains_key(&id) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_HANDLE,
                format!("{} {id:#x} exists already", self.kind),
            ));
        }
        self.objects.insert(id, object);
        Ok(())
    }

    pub fn get(&self, id: u64) -> Result<&T, Failure> {
        self.objects
            .get(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    pub fn get_mut(&mut self, id: u64) -> Result<&mut T, Failure> {
        self.objects
            .get_mut(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    pub fn remove(&mut self, id: u64) -> Result<T, Failure> {
        self.objects
            .remove(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.objects.iter().map(|(id, object)| (*id, object))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.objects.retain(|_, object| keep(object));
    }

    pub fn for_each_mut(&mut self, change: impl FnMut(&mut T)) {
        self.objects.values_mut().for_each(change);
    }

    pub fn drain(&mut self) -> impl Iterator<Item = (u64, T)> + '_ {
        self.objects.drain()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}
