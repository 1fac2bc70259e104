//! Numbers that records use for contexts, streams and events.
//!
//! Those of contexts and streams come from the server, once each. Those of events are made here: no
//! record of the server names an event.

use std::collections::HashMap;

use outboard_api::activity::{NUMBER_CONTEXT, NUMBER_STREAM, Numbers};
use parking_lot::Mutex;

use crate::{driver, status::Status};

/// Most numbers of one kind that are kept; past these they are asked for again.
const REMEMBERED_MAX: usize = 1 << 16;
/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`.
const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

/// Context, stream, and the thread if the stream is the thread's own.
type StreamKey = (usize, usize, i32);

static CONTEXTS: Mutex<Option<HashMap<usize, u32>>> = Mutex::new(None);
static STREAMS: Mutex<Option<HashMap<StreamKey, Numbers>>> = Mutex::new(None);
static EVENTS: Mutex<Events> = Mutex::new(Events {
    known: None,
    last: 0,
    last_record: 0,
});

struct Events {
    known: Option<HashMap<usize, Event>>,
    last: u32,
    last_record: u64,
}

/// Number of an event, and of its last record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u32,
    pub(crate) record: u64,
}

/// Returns the number of a context, 0 for none. A new context is 0 too unless the server may be
/// asked.
pub(crate) fn context(context: usize, may_ask: bool) -> u32 {
    if context == 0 {
        return 0;
    }
    let known = CONTEXTS
        .lock()
        .as_ref()
        .and_then(|c| c.get(&context).copied());
    if known.is_some() || !may_ask {
        return known.unwrap_or(0);
    }
    let Ok(found) = driver::number(NUMBER_CONTEXT, context, context) else {
        return 0;
    };
    remember(&CONTEXTS, context, found.context);
    found.context
}

/// Returns the numbers of a stream and its context.
pub(crate) fn stream(context: usize, stream: usize) -> Result<Numbers, Status> {
    let key = match stream {
        0 | LEGACY => (context, 0, 0),
        // SAFETY: asks for the thread's number.
        PER_THREAD => (context, stream, unsafe { libc::gettid() }),
        _ => (context, stream, 0),
    };
    let known = STREAMS.lock().as_ref().and_then(|s| s.get(&key).copied());
    if let Some(known) = known {
        return Ok(known);
    }
    let found = driver::number(NUMBER_STREAM, context, stream)?;
    remember(&STREAMS, key, found);
    Ok(found)
}

fn remember<K: std::hash::Hash + Eq, V>(map: &Mutex<Option<HashMap<K, V>>>, key: K, value: V) {
    let mut map = map.lock();
    let map = map.get_or_insert_default();
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
    map.insert(key, value);
}

/// Forgets a destroyed stream, whose handle may be reused.
pub(crate) fn forget_stream(stream: usize) {
    if let Some(streams) = STREAMS.lock().as_mut() {
        streams.retain(|(_, known, _), _| *known != stream);
    }
}

/// Returns an event, after counting one more record of it if `is_recorded`.
pub(crate) fn event(event: usize, is_recorded: bool) -> Event {
    let mut events = EVENTS.lock();
    let (next, mut record) = (events.last.wrapping_add(1), events.last_record);
    let known = events.known.get_or_insert_default();
    if known.len() >= REMEMBERED_MAX && !known.contains_key(&event) {
        known.clear();
    }
    let is_new = !known.contains_key(&event);
    let found = known.entry(event).or_insert(Event {
        number: next,
        record: 0,
    });
    if is_recorded {
        record += 1;
        found.record = record;
    }
    let found = *found;
    events.last_record = record;
    if is_new {
        events.last = next;
    }
    found
}

/// Forgets a destroyed event, whose handle may be reused.
pub(crate) fn forget_event(event: usize) {
    if let Some(known) = EVENTS.lock().known.as_mut() {
        known.remove(&event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_its_number_until_it_is_gone() {
        let first = event(0x10, true);
        let second = event(0x20, true);
        assert_ne!(first.number, second.number);
        assert!(second.record > first.record);
        // Looked at, it is as its last record left it.
        assert_eq!(event(0x10, false), first);
        assert_eq!(event(0x10, true).number, first.number);
        forget_event(0x10);
        assert_ne!(event(0x10, false).number, first.number);
    }
}
