//! One process, one budget: the steps run in one test.

use std::alloc::Layout;

use outboard_budget::{
    Charge, CountingAllocator, Exhausted, MARGIN_BYTES, check, check_light, is_tight, reserve, set,
    used,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MIB: u64 = 1 << 20;

#[test]
fn heap_and_charges_count_and_what_is_beyond_is_refused() {
    // Without a budget everything is counted and nothing refused.
    let before = used();
    let heap = vec![7u8; 8 << 20];
    assert!(used() - before >= 8 * MIB);
    assert!(check().is_ok() && !is_tight());

    let budget = used() + 16 * MIB;
    set(budget);
    assert!(reserve(8 * MIB).is_ok());
    let refused = reserve(17 * MIB).unwrap_err();
    assert!(
        matches!(refused, Exhausted::Budget { budget_bytes, .. } if budget_bytes == budget),
        "{refused}"
    );
    assert!(refused.to_string().contains("--host-memory"), "{refused}");

    // A charge counts until it is dropped; one that does not fit counts nothing.
    let charge = Charge::take(12 * MIB).unwrap();
    let during = used();
    assert!(Charge::take(12 * MIB).is_err());
    assert_eq!(used(), during);
    drop(charge);
    assert!(used() + 12 * MIB <= during + MIB);

    // The heap may pass the budget by its margin, and then says so; not by more.
    let over = vec![1u8; 32 << 20];
    assert!(check().is_err() && is_tight());
    assert!(check_light().is_ok());
    let further = vec![1u8; 24 << 20];
    assert!(check_light().is_err());
    drop(further);
    assert!(Charge::take(1).is_err());
    let layout = Layout::from_size_align(MARGIN_BYTES as usize, 8).unwrap();
    // SAFETY: the layout is not empty; NULL is expected.
    assert!(unsafe { std::alloc::alloc(layout) }.is_null());
    let mut fallible: Vec<u8> = Vec::new();
    assert!(fallible.try_reserve(MARGIN_BYTES as usize).is_err());
    drop(over);
    assert!(check().is_ok());

    // Memory that grows in place or moves is counted once.
    let mut grown = heap;
    let before = used();
    grown.reserve_exact(12 << 20);
    assert!((12 * MIB..13 * MIB).contains(&(used() - before)));
    drop(grown);
    assert!(used() < before);
}
