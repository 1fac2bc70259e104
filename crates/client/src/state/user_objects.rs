//! User objects, which graphs keep alive for the program, with their reference counts. The server
//! does not know them.
//!
//! An object is destroyed when it has no references and no launch of an executable graph that held
//! it is under way. Its destructor runs on a thread of this library and, as in CUDA, may not call
//! CUDA.

use std::ffi::c_void;

use outboard_api::{CUresult, cuda::CUhostFn};
use outboard_wire::messages;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Driver, HandleKind};
use crate::{
    callbacks::{self, Job},
    session::{Group, Sink},
};

/// Number of references to each object.
type ReferenceCounts = FxHashMap<u64, u64>;

#[derive(Default)]
pub(crate) struct UserObjects(Mutex<ObjectTable>);

#[derive(Default)]
struct ObjectTable {
    last: u64,
    objects: FxHashMap<u64, Object>,
    graphs: FxHashMap<u64, ReferenceCounts>,
    execs: FxHashMap<u64, ReferenceCounts>,
}

struct Object {
    destroy: CUhostFn,
    argument: *mut c_void,
    references: u64,
}

// SAFETY: the pointer is the program's, given for a call on another thread.
unsafe impl Send for Object {}

impl ObjectTable {
    /// Releases references. Returns the objects that have none left, removed from the table.
    fn release(&mut self, held: impl IntoIterator<Item = (u64, u64)>) -> Vec<Object> {
        let mut gone = Vec::new();
        for (object, count) in held {
            if let Some(known) = self.objects.get_mut(&object) {
                known.references = known.references.saturating_sub(count);
                if known.references == 0 {
                    gone.extend(self.objects.remove(&object));
                }
            }
        }
        gone
    }

    fn retain(&mut self, held: &ReferenceCounts) {
        for (object, count) in held {
            if let Some(known) = self.objects.get_mut(object) {
                known.references += count;
            }
        }
    }
}

impl UserObjects {
    /// `first` is the number below which no object of the server has its number.
    pub(crate) fn of(first: u64) -> UserObjects {
        UserObjects(Mutex::new(ObjectTable {
            last: HandleKind::UserObject.tag(first),
            ..ObjectTable::default()
        }))
    }

    /// Creates an object and returns its handle.
    pub(crate) fn create(&self, destroy: CUhostFn, argument: *mut c_void, references: u64) -> u64 {
        let mut table = self.0.lock();
        table.last += 1;
        let handle = table.last;
        let object = Object {
            destroy,
            argument,
            references,
        };
        table.objects.insert(handle, object);
        handle
    }

    pub(crate) fn retain(&self, object: u64, count: u64) -> Result<(), CUresult> {
        let mut table = self.0.lock();
        let known = table.objects.get_mut(&object);
        known.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?.references += count;
        Ok(())
    }

    pub(crate) fn release(&self, object: u64, count: u64) -> Result<(), CUresult> {
        let mut table = self.0.lock();
        let known = table.objects.get(&object);
        known
            .filter(|known| count <= known.references)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        destroy(table.release([(object, count)]));
        Ok(())
    }

    /// Adds references of a graph to an object. If `moved`, the caller's references become the
    /// graph's.
    pub(crate) fn graph_retains(
        &self,
        graph: u64,
        object: u64,
        count: u64,
        moved: bool,
    ) -> Result<(), CUresult> {
        let mut table = self.0.lock();
        let known = table.objects.get_mut(&object);
        let known = known.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !moved {
            known.references += count;
        }
        *table
            .graphs
            .entry(graph)
            .or_default()
            .entry(object)
            .or_default() += count;
        Ok(())
    }

    pub(crate) fn graph_releases(
        &self,
        graph: u64,
        object: u64,
        count: u64,
    ) -> Result<(), CUresult> {
        let mut table = self.0.lock();
        let held = table.graphs.get_mut(&graph);
        let held = held.and_then(|held| held.get_mut(&object));
        let held = held.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        *held = held
            .checked_sub(count)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        destroy(table.release([(object, count)]));
        Ok(())
    }

    /// Adds to a graph the references of its original, or of a graph that became part of it.
    pub(crate) fn inherit(&self, graph: u64, part: u64) {
        let mut table = self.0.lock();
        let Some(held) = table.graphs.get(&part).cloned() else {
            return;
        };
        table.retain(&held);
        let own = table.graphs.entry(graph).or_default();
        for (object, count) in held {
            *own.entry(object).or_default() += count;
        }
    }

    /// Adds to an executable graph the references of its graph.
    pub(crate) fn instantiated(&self, exec: u64, graph: u64) {
        let mut table = self.0.lock();
        if let Some(held) = table.graphs.get(&graph).cloned() {
            table.retain(&held);
            table.execs.insert(exec, held);
        }
    }

    pub(crate) fn graph_gone(&self, graph: u64) {
        let mut table = self.0.lock();
        if let Some(held) = table.graphs.remove(&graph) {
            destroy(table.release(held));
        }
    }

    fn exec_gone(&self, exec: u64) -> Vec<Object> {
        let mut table = self.0.lock();
        match table.execs.remove(&exec) {
            Some(held) => table.release(held),
            None => Vec::new(),
        }
    }
}

fn destroy(objects: Vec<Object>) {
    if objects.is_empty() {
        return;
    }
    run(objects, || ());
}

/// Runs destructors, each once, after `wait` has returned.
fn run(objects: Vec<Object>, wait: impl FnOnce() + Send + 'static) {
    let mut objects = objects.into_iter();
    let mut wait = Some(wait);
    callbacks::spawn(c"outboard-object", move || {
        if let Some(wait) = wait.take() {
            wait();
        }
        objects.find_map(|object| Job::function(object.destroy, object.argument))
    });
}

impl Driver {
    /// Releases the objects of a destroyed executable graph, after its launches are over.
    pub(crate) fn user_objects_of_exec_gone(&self, exec: u64) {
        let objects = self.user_objects.exec_gone(exec);
        if objects.is_empty() {
            return;
        }
        let group = Group::new(1);
        let context = super::wire_context();
        let message = messages::FenceContext { slot: 0, value: 0 };
        let asked = self.session.ask(context, &message, &group, Sink::Group);
        let session = self.session;
        run(objects, move || {
            if asked.is_ok() {
                // A lost session has no launches either.
                let _ = session.wait(&group);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    unsafe extern "C" fn count(argument: *mut c_void) {
        // SAFETY: the test's own counter.
        unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
    }

    fn settles(counter: &AtomicU32, value: u32) -> bool {
        (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            counter.load(Ordering::SeqCst) == value
        })
    }

    #[test]
    fn an_object_goes_with_whoever_held_it_last() {
        static DESTROYED: AtomicU32 = AtomicU32::new(0);
        let objects = UserObjects::default();
        let argument = (&raw const DESTROYED).cast_mut().cast();
        let object = objects.create(Some(count), argument, 1);
        objects.graph_retains(1, object, 1, true).expect("known");
        objects.inherit(2, 1);
        objects.instantiated(9, 1);
        objects.graph_gone(1);
        objects.graph_releases(2, object, 1).expect("held");
        assert!(objects.graph_releases(2, object, 1).is_err(), "held once");
        assert!(!settles(&DESTROYED, 1) || DESTROYED.load(Ordering::SeqCst) == 0);
        let gone = objects.exec_gone(9);
        assert_eq!(gone.len(), 1);
        destroy(gone);
        assert!(settles(&DESTROYED, 1));
        assert!(objects.retain(object, 1).is_err(), "it is gone");
    }
}
