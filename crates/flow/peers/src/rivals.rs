//! Every table that is measured, behind one interface.

use crate::keys::Keys;
use outboard_flow::tables::{Chained, Cuckoo, CuckooBloom, Hopscotch, Robin, Standard};
use outboard_flow::{Batched, FlowTable, NONE, Secret, V4};
use std::ops::Range;

pub trait Rival {
    /// Inserts key number `i`. False: refused.
    fn insert(&mut self, keys: &Keys, i: usize) -> bool;
    /// Inserts keys, in batches of 32 if the table has those. Returns how many it refused.
    fn fill(&mut self, keys: &Keys, range: Range<usize>) -> usize {
        range.filter(|i| !self.insert(keys, *i)).count()
    }
    fn each(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]);
    fn batch(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]);
    fn has_batches(&self) -> bool {
        false
    }
    fn bytes(&self) -> usize {
        0
    }
}

/// Makes a table for a number of entries.
pub type Make = fn(usize) -> Box<dyn Rival>;

struct Own<T>(T, bool);

impl<T: FlowTable<V4>> Rival for Own<T> {
    #[inline]
    fn insert(&mut self, keys: &Keys, i: usize) -> bool {
        self.0.insert(keys.v4[i], i as u32).is_ok()
    }
    fn fill(&mut self, keys: &Keys, range: Range<usize>) -> usize {
        let mut refused = 0;
        if !self.1 {
            return range.filter(|i| !self.insert(keys, *i)).count();
        }
        for from in range.clone().step_by(32) {
            let to = range.end.min(from + 32);
            let values: [u32; 32] = std::array::from_fn(|i| (from + i) as u32);
            let mut answers = [Ok(()); 32];
            self.0
                .insert_batch(&keys.v4[from..to], &values, &mut answers);
            refused += answers.iter().filter(|answer| answer.is_err()).count();
        }
        refused
    }
    fn each(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
        self.0.get_each(&keys.v4[range], values);
    }
    fn batch(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
        self.0.get_batch(&keys.v4[range], values);
    }
    fn has_batches(&self) -> bool {
        self.1
    }
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

fn own<T: FlowTable<V4> + 'static>(capacity: usize) -> Box<dyn Rival> {
    Box::new(Own(
        T::with_capacity(capacity, Secret::from_seed(1)).expect("memory"),
        false,
    ))
}

fn batched(capacity: usize) -> Box<dyn Rival> {
    let table = Batched::<V4>::populated(capacity, Secret::from_seed(1)).expect("memory");
    Box::new(Own(table, true))
}

/// `Batched` filled one by one and looked up one by one.
fn batched_singly(capacity: usize) -> Box<dyn Rival> {
    let table = Batched::<V4>::populated(capacity, Secret::from_seed(1)).expect("memory");
    Box::new(Own(table, false))
}

#[cfg(foreign)]
impl<const KIND: i32> Rival for crate::foreign::Foreign<KIND> {
    fn insert(&mut self, keys: &Keys, i: usize) -> bool {
        self.put(&keys.k16[i], i as u32).is_ok()
    }
    fn each(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
        self.each(&keys.k16[range], values);
    }
    fn batch(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
        self.batch(&keys.k16[range], values);
    }
    fn has_batches(&self) -> bool {
        matches!(KIND, crate::foreign::RTE | crate::foreign::RTE_LOCK_FREE)
    }
}

#[cfg(foreign)]
fn foreign<const KIND: i32>(capacity: usize) -> Box<dyn Rival> {
    Box::new(crate::foreign::Foreign::<KIND>::make(capacity))
}

/// Tables with the interface of a map: a name, how to make one, insert, and look up.
macro_rules! maps {
    ($($wrap:ident: $map:ty, $make:expr, $insert:expr, $get:expr);* $(;)?) => {
        $(struct $wrap($map);

        impl Rival for $wrap {
            fn insert(&mut self, keys: &Keys, i: usize) -> bool {
                let insert: fn(&mut $map, V4, u32) -> bool = $insert;
                insert(&mut self.0, keys.v4[i], i as u32)
            }
            fn each(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
                let get = $get;
                for (key, value) in keys.v4[range].iter().zip(values) {
                    *value = get(&self.0, key).unwrap_or(NONE);
                }
            }
            fn batch(&self, keys: &Keys, range: Range<usize>, values: &mut [u32]) {
                self.each(keys, range, values);
            }
        }

        impl $wrap {
            fn make(capacity: usize) -> Box<dyn Rival> {
                let make: fn(usize) -> $map = $make;
                Box::new($wrap(make(capacity)))
            }
        })*
    };
}

maps!(
    Hashbrown: hashbrown::HashMap<V4, u32>, hashbrown::HashMap::with_capacity,
        |map, key, value| map.insert(key, value).is_none(),
        |map: &hashbrown::HashMap<V4, u32>, key: &V4| map.get(key).copied();
    Dashmap: dashmap::DashMap<V4, u32>, dashmap::DashMap::with_capacity,
        |map, key, value| map.insert(key, value).is_none(),
        |map: &dashmap::DashMap<V4, u32>, key: &V4| map.get(key).map(|one| *one);
    Scc: scc::HashMap<V4, u32>, scc::HashMap::with_capacity,
        |map, key, value| map.insert_sync(key, value).is_ok(),
        |map: &scc::HashMap<V4, u32>, key: &V4| map.read_sync(key, |_, value| *value);
    Papaya: papaya::HashMap<V4, u32>, papaya::HashMap::with_capacity,
        |map, key, value| map.pin().insert(key, value).is_none(),
        |map: &papaya::HashMap<V4, u32>, key: &V4| map.pin().get(key).copied();
);

/// All tables, each with its name; those of C and C++ only if they were compiled in.
pub fn all() -> Vec<(&'static str, Make)> {
    let mut all: Vec<(&'static str, Make)> = vec![
        ("batched", batched),
        ("batched, inserted singly", batched_singly),
    ];
    #[cfg(foreign)]
    {
        use crate::foreign::{
            ABSEIL, HOPSCOTCH, LIBCUCKOO, ROBIN, RTE, RTE_LOCK_FREE, STD, TBB, URCU,
        };
        all.extend::<[(&'static str, Make); 9]>([
            ("rte_hash", foreign::<RTE>),
            ("rte_hash lock-free", foreign::<RTE_LOCK_FREE>),
            ("tsl::hopscotch_map", foreign::<HOPSCOTCH>),
            ("tsl::robin_map", foreign::<ROBIN>),
            ("absl::flat_hash_map", foreign::<ABSEIL>),
            ("std::unordered_map", foreign::<STD>),
            ("libcuckoo", foreign::<LIBCUCKOO>),
            ("tbb::concurrent_hash_map", foreign::<TBB>),
            ("liburcu", foreign::<URCU>),
        ]);
    }
    all.extend::<[(&'static str, Make); 10]>([
        ("hashbrown", Hashbrown::make),
        ("papaya", Papaya::make),
        ("scc", Scc::make),
        ("dashmap", Dashmap::make),
        ("our chained", own::<Chained<V4>>),
        ("our std", own::<Standard<V4>>),
        ("our cuckoo", own::<Cuckoo<V4>>),
        ("our cuckoo++", own::<CuckooBloom<V4>>),
        ("our hopscotch", own::<Hopscotch<V4>>),
        ("our robin hood", own::<Robin<V4>>),
    ]);
    all
}
