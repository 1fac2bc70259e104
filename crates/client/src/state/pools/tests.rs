use super::*;

const A: Owner = Owner {
    context: 1,
    stream: 10,
};
const B: Owner = Owner {
    context: 1,
    stream: 11,
};
const OTHER: Owner = Owner {
    context: 2,
    stream: 12,
};
const BASE: u64 = 0x2000_0000_0000;

fn pool(chunk_bytes: u64) -> Pool {
    let mut pool = Pool::new(0, 0);
    pool.add_chunk(Chunk {
        base: BASE,
        bytes: chunk_bytes,
    });
    pool
}

#[test]
fn a_stream_reuses_its_own_frees_at_once_and_nobody_else_does() {
    let mut p = pool(1024);
    let first = p.take(1024, A).expect("room");
    p.give(first, Some((A, 0))).expect("live");
    assert_eq!(p.take(1024, B), None, "not complete yet");
    assert_eq!(p.pending_owners(1024), [A]);
    assert_eq!(p.take(1024, A), Some(first));
    p.give(first, Some((A, 1))).expect("live");
    p.complete(Scope::Stream(B), 2);
    p.complete(Scope::Context(CUcontext(2)), 2);
    p.complete(Scope::Stream(A), 1);
    assert_eq!(
        p.take(1024, B),
        None,
        "the wait began before the second free"
    );
    p.complete(Scope::Stream(A), 2);
    assert_eq!(p.take(1024, B), Some(first));
}

#[test]
fn waiting_for_a_context_completes_all_its_streams() {
    let mut p = pool(1536);
    let blocks: Vec<u64> = [A, B, OTHER]
        .iter()
        .map(|s| p.take(512, *s).expect("room"))
        .collect();
    for (number, (block, owner)) in blocks.iter().zip([A, B, OTHER]).enumerate() {
        p.give(*block, Some((owner, number as u64))).expect("live");
    }
    p.complete(Scope::Context(CUcontext(1)), 3);
    assert_eq!(p.pending_owners(1), [OTHER]);
    assert_eq!(
        p.take(1024, OTHER),
        Some(blocks[0]),
        "two neighbours have become one"
    );
}

#[test]
fn merged_frees_are_complete_with_the_later_one() {
    let mut p = pool(1024);
    let (x, y) = (p.take(512, A).expect("room"), p.take(512, A).expect("room"));
    p.give(x, Some((A, 5))).expect("live");
    p.give(y, Some((A, 9))).expect("live");
    p.complete(Scope::Stream(A), 9);
    assert_eq!(p.take(512, B), None);
    p.complete(Scope::Stream(A), 10);
    assert_eq!(p.take(1024, B), Some(x));
}

#[test]
fn the_rest_of_a_pending_block_stays_pending() {
    let mut p = pool(1024);
    let whole = p.take(1024, A).expect("room");
    p.give(whole, Some((A, 0))).expect("live");
    let part = p.take(512, A).expect("own");
    assert_eq!(p.take(512, B), None);
    assert_eq!(p.take(512, A), Some(part + 512));
}

#[test]
fn blocks_never_merge_across_chunks() {
    let mut p = pool(1024);
    p.add_chunk(Chunk {
        base: BASE + 1024,
        bytes: 1024,
    });
    let (x, y) = (
        p.take(1024, A).expect("room"),
        p.take(1024, A).expect("room"),
    );
    p.give(x, None).expect("live");
    p.give(y, None).expect("live");
    assert_eq!(p.take(2048, A), None);
    assert_eq!(p.release_above(1024).len(), 1);
    assert_eq!(p.release_above(0).len(), 1);
    assert_eq!(
        p.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        Ok(PoolValue::Long(0))
    );
}

#[test]
fn only_idle_chunks_are_released() {
    let mut p = pool(1024);
    let block = p.take(512, A).expect("room");
    assert!(p.release_above(0).is_empty(), "in use");
    p.give(block, Some((A, 0))).expect("live");
    assert!(p.release_above(0).is_empty(), "not known to be complete");
    p.complete(Scope::Stream(A), 1);
    p.set_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, |_| 1024)
        .expect("settable");
    assert!(p.release_after_wait().is_empty(), "below the threshold");
    p.set_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, |_| 1023)
        .expect("settable");
    assert_eq!(
        p.release_after_wait(),
        [Chunk {
            base: BASE,
            bytes: 1024
        }]
    );
    assert_eq!(p.take(512, A), None);
}

#[test]
fn counters_are_exact() {
    let mut p = pool(4096);
    let value = |p: &Pool, attribute| p.attribute(attribute).expect("known");
    let (x, y) = (
        p.take(1024, A).expect("room"),
        p.take(512, A).expect("room"),
    );
    p.give(x, None).expect("live");
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        PoolValue::Long(512)
    );
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
        PoolValue::Long(1536)
    );
    assert!(
        p.set_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, |_| 7)
            .is_err()
    );
    p.set_attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH, |_| 0)
        .expect("a reset");
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
        PoolValue::Long(512)
    );
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
        PoolValue::Int(1)
    );
    assert_eq!(p.give(x, None), None, "freed twice");
    p.give(y, None).expect("live");
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        PoolValue::Long(0)
    );
    assert_eq!(
        value(&p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
        PoolValue::Long(4096)
    );
}

#[test]
fn chunk_sizes_respect_the_limit() {
    let sizes = |max: u64, bytes| Pool::new(0, max).chunk_sizes(bytes).collect::<Vec<_>>();
    assert_eq!(sizes(0, 512), [POOL_CHUNK_BYTES, CHUNK_BYTES]);
    assert_eq!(sizes(0, 100 << 20), [100 << 20]);
    assert_eq!(sizes(4 << 20, 512), [CHUNK_BYTES]);
    assert_eq!(sizes(4 << 20, 5 << 20), [] as [u64; 0]);
    assert_eq!(sizes(0, u64::MAX - 511), [] as [u64; 0]);
}
