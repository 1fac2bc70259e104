use super::*;
use outboard_wire::doc::DeviceCard;

const CONTEXT: CUcontext = CUcontext(1);

fn memory(base: u64, quota: u64) -> DeviceMemory {
    memory_of(base, quota, false)
}

fn memory_of(base: u64, quota: u64, exact: bool) -> DeviceMemory {
    let card = DeviceCard {
        quota_bytes: quota,
        ..DeviceCard::default()
    };
    let welcome = ServerWelcome {
        release: String::new(),
        session: 0,
        driver_version: 13000,
        ptx_only: false,
        window_base: base,
        window_bytes: 1 << 30,
        exact_memory: exact,
        confirms_memory: false,
        devices: vec![card],
        key: None,
    };
    DeviceMemory::reserve(&welcome, |local| local as i32, 0).expect("a free window")
}

#[test]
fn exact_allocations_have_guards_and_are_never_used_again() {
    let mut m = memory_of(0x2180_0000_0000, 1 << 30, true);
    let sizes = [100, 3 << 20];
    let chunks = sizes.map(|bytes| {
        let (base, chunk) = m
            .allocate(bytes, CONTEXT, 0, AllocationKind::Plain, 0)
            .expect("room");
        assert_eq!(chunk, Some(Chunk { base, bytes }));
        Chunk { base, bytes }
    });
    assert!(chunks[1].base >= chunks[0].base + 100 + CHUNK_BYTES);
    assert_eq!(m.free_bytes(0), (1 << 30) - 100 - (3 << 20));
    for chunk in chunks {
        assert_eq!(m.free(chunk.base, 1).expect("live").1, Some(chunk));
    }
    assert_eq!(m.free_bytes(0), 1 << 30);
    let (next, _) = m
        .allocate(100, CONTEXT, 0, AllocationKind::Plain, 9)
        .expect("room");
    assert!(next > chunks[1].base);
}

#[test]
fn small_allocations_share_a_chunk_and_give_it_back() {
    let mut m = memory(0x2100_0000_0000, 1 << 30);
    let (first, chunk) = m
        .allocate(100, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    assert_eq!(
        chunk,
        Some(Chunk {
            base: first,
            bytes: CHUNK_BYTES
        })
    );
    let (second, chunk) = m
        .allocate(4000, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    assert_eq!(chunk, None);
    assert_eq!(second - first, 512);
    assert_eq!(m.free(first, 1).expect("live").1, None);
    assert_eq!(
        m.free(second, 1).expect("live").1,
        Some(Chunk {
            base: first,
            bytes: CHUNK_BYTES
        })
    );
    assert_eq!(
        m.free(second, 1).err(),
        Some(CUresult::CUDA_ERROR_INVALID_VALUE)
    );
    assert_eq!(m.free_bytes(0), 1 << 30);
}

#[test]
fn a_small_piece_rests_until_what_may_use_it_is_done() {
    let mut m = memory(0x2140_0000_0000, 1 << 30);
    let sizes = [1 << 20, 512 << 10, 512 << 10];
    let bases = sizes.map(|bytes| {
        m.allocate(bytes, CONTEXT, 0, AllocationKind::Plain, 0)
            .expect("room")
            .0
    });
    m.free(bases[1], 7).expect("live");
    let (elsewhere, chunk) = m
        .allocate(512 << 10, CONTEXT, 0, AllocationKind::Plain, 6)
        .expect("room");
    assert!(elsewhere != bases[1] && chunk.is_some());
    // Both the old chunk's piece and the new chunk's rest are free now.
    let again = [(); 4].map(|()| {
        m.allocate(512 << 10, CONTEXT, 0, AllocationKind::Plain, 7)
            .expect("room")
            .0
    });
    assert!(again.contains(&bases[1]));
}

#[test]
fn the_quota_is_the_limit() {
    let mut m = memory(0x2110_0000_0000, 8 << 20);
    let (base, _) = m
        .allocate(7 << 20, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    assert_eq!(
        m.allocate(1, CONTEXT, 0, AllocationKind::Plain, 0).err(),
        Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    );
    m.free(base, 1).expect("live");
    assert!(
        m.allocate(8 << 20, CONTEXT, 0, AllocationKind::Plain, 0)
            .is_ok()
    );
}

#[test]
fn addresses_are_found_inside_allocations_only() {
    let mut m = memory(0x2120_0000_0000, 1 << 30);
    let (base, _) = m
        .allocate(3 << 20, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    assert_eq!(m.find(base + 5).map(|a| a.base), Some(base));
    assert!(m.find(base + (3 << 20)).is_none());
    assert!(m.in_window(base + (3 << 20)));
    assert!(m.find(base - 1).is_none());
}

#[test]
fn freed_addresses_are_used_again_last() {
    let mut m = memory(0x2130_0000_0000, 1 << 30);
    let (first, _) = m
        .allocate(2 << 20, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    m.free(first, 1).expect("live");
    let (second, _) = m
        .allocate(2 << 20, CONTEXT, 0, AllocationKind::Plain, 0)
        .expect("room");
    assert_ne!(first, second);
}

#[test]
fn the_memory_of_a_context_that_ends_is_given_back_after_it_is_unmapped() {
    const OTHER: CUcontext = CUcontext(2);
    let mut m = memory(0x2190_0000_0000, 8 << 20);
    let place = |m: &mut DeviceMemory, bytes| {
        m.allocate(bytes, OTHER, 0, AllocationKind::Plain, 9)
            .map(|(base, _)| base)
    };
    let bases = [100, 3 << 20].map(|bytes| {
        m.allocate(bytes, CONTEXT, 0, AllocationKind::Plain, 0)
            .expect("room")
            .0
    });
    let chunks = m.free_context(CONTEXT);
    assert_eq!(chunks.len(), 2);
    let meanwhile = place(&mut m, 100).expect("room");
    assert!(!bases.contains(&meanwhile));
    // The server still counts their bytes.
    assert!(place(&mut m, 3 << 20).is_err());
    for chunk in chunks {
        m.give_freed(chunk, 0);
    }
    assert!(place(&mut m, 3 << 20).is_ok());
    assert_eq!(m.free_bytes(0), 2 << 20);
}
