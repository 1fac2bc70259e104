//! Tables from the client's handles to the server's objects.

use rustc_hash::FxHashMap;

use crate::Failure;

/// Objects of one kind in a session.
const OBJECTS_MAX: usize = 1 << 22;

/// A table from the client's numbers to the device's own objects, for one kind of handle.
pub struct HandleTable<T> {
    kind: &'static str,
    objects: FxHashMap<u64, T>,
}

impl<T> HandleTable<T> {
    /// Makes an empty table. `kind` names the objects in failures.
    pub fn new(kind: &'static str) -> HandleTable<T> {
        HandleTable {
            kind,
            objects: FxHashMap::default(),
        }
    }

    /// Binds a number that the client chose. A number already in use is the client's fault.
    pub fn insert(&mut self, id: u64, object: T) -> Result<(), Failure> {
        self.try_insert(id, object).map_err(|(refused, _)| refused)
    }

    /// Binds a number as [`HandleTable::insert`] does, but returns the object of a number that is
    /// refused.
    pub fn try_insert(&mut self, id: u64, object: T) -> Result<(), (Failure, T)> {
        use outboard_api::CUresult;
        if self.objects.len() >= OBJECTS_MAX {
            let message = format!("more than {OBJECTS_MAX} objects of kind {}", self.kind);
            let refused = Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, message);
            return Err((refused, object));
        }
        if self.objects.contains_key(&id) {
            let message = format!("{} {id:#x} exists already", self.kind);
            let refused = Failure::new(CUresult::CUDA_ERROR_INVALID_HANDLE, message);
            return Err((refused, object));
        }
        self.objects.insert(id, object);
        Ok(())
    }

    /// Returns the object of a number, or the failure for a number of no object.
    pub fn get(&self, id: u64) -> Result<&T, Failure> {
        self.objects
            .get(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    /// Returns the object of a number for changes, or the failure for a number of no object.
    pub fn get_mut(&mut self, id: u64) -> Result<&mut T, Failure> {
        self.objects
            .get_mut(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    /// Takes the object of a number out of the table.
    pub fn remove(&mut self, id: u64) -> Result<T, Failure> {
        self.objects
            .remove(&id)
            .ok_or_else(|| Failure::wild(self.kind, id))
    }

    /// Returns every number with its object, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.objects.iter().map(|(id, object)| (*id, object))
    }

    /// Returns every object for changes, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    /// Drops the objects for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.objects.retain(|_, object| keep(object));
    }

    /// Takes out the objects for which `is_gone` is true.
    pub fn extract(&mut self, mut is_gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let gone = self.objects.extract_if(|_, object| is_gone(object));
        gone.map(|(_, object)| object).collect()
    }

    /// Changes every object.
    pub fn for_each_mut(&mut self, change: impl FnMut(&mut T)) {
        self.objects.values_mut().for_each(change);
    }

    /// Empties the table.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, T)> + '_ {
        self.objects.drain()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the table has no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}
