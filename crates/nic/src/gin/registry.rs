//! Objects that NCCL has made, by the numbers that it has for them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::RwLock;

use super::{
    Outcome,
    abi::Handle,
    broken,
    group::Listener,
    queue::{Group, Queues, Request},
    window::Window,
    wrong,
};

/// Objects of all kinds.
const OBJECTS_MAX: usize = 1 << 20;
/// Numbers begin here and are not used again, so that no other value of NCCL's is one.
const FIRST: usize = 0x1000;

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

#[derive(Default)]
struct Registry {
    made: usize,
    objects: HashMap<usize, Object>,
}

/// An object of NCCL's.
#[derive(Clone)]
pub(super) enum Object {
    Context,
    Listener(Arc<Listener>),
    Group(Arc<Group>),
    Queues(Arc<Queues>),
    Window(Arc<Window>),
    Request(Arc<Request>),
}

/// Keeps an object, and returns its number.
pub(super) fn keep(object: Object) -> Outcome<Handle> {
    let mut registry = REGISTRY.write();
    if registry.objects.len() >= OBJECTS_MAX {
        return Err(broken(format!("more than {OBJECTS_MAX} objects")));
    }
    registry.made += 1;
    let number = FIRST + registry.made;
    registry.objects.insert(number, object);
    Ok(number as Handle)
}

/// Forgets an object, which has to be of a kind.
pub(super) fn forget<T>(handle: Handle, kind: Kind<T>) -> Outcome<T> {
    let object = find(handle, kind)?;
    // Dropped when the lock is free: some of them wait for what is to be sent.
    let removed = REGISTRY.write().objects.remove(&(handle as usize));
    drop(removed);
    Ok(object)
}

/// Returns an object of a kind.
pub(super) fn find<T>(handle: Handle, kind: Kind<T>) -> Outcome<T> {
    let object = REGISTRY.read().objects.get(&(handle as usize)).cloned();
    match object.and_then(kind.of) {
        Some(object) => Ok(object),
        None => wrong(format!("{handle:p} is no {}", kind.name)),
    }
}

/// A kind of object.
pub(super) struct Kind<T> {
    name: &'static str,
    of: fn(Object) -> Option<T>,
}

macro_rules! kinds {
    ($($constant:ident: $name:literal, $variant:ident($type:ty);)*) => {
        $(pub(super) const $constant: Kind<Arc<$type>> = Kind {
            name: $name,
            of: |object| match object {
                Object::$variant(object) => Some(object),
                _ => None,
            },
        };)*
    };
}

pub(super) const CONTEXT: Kind<()> = Kind {
    name: "context of the plugin",
    of: |object| matches!(object, Object::Context).then_some(()),
};

kinds! {
    LISTENER: "listener", Listener(Listener);
    GROUP: "group of ranks", Group(Group);
    QUEUES: "context", Queues(Queues);
    WINDOW: "registered memory", Window(Window);
    REQUEST: "request", Request(Request);
}
