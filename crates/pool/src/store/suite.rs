//! The suite that each store passes.

#![allow(clippy::unwrap_used)]

use super::*;

fn write(key: &str, value: Option<&str>) -> (String, Option<Vec<u8>>) {
    (key.into(), value.map(|value| value.as_bytes().to_vec()))
}

/// Checks transactions, records and changes of a store that is empty.
pub fn obeys_the_rules(store: &mut dyn Store) {
    let one = Transaction {
        compare: vec![("a".into(), None)],
        write: vec![write("a", Some("1")), write("b", Some("2"))],
    };
    let first = store.commit(&one).unwrap();
    // Now there is one.
    assert!(matches!(store.commit(&one), Err(StoreError::Conflict)));
    let two = Transaction {
        compare: vec![("a".into(), Some(first))],
        write: vec![write("b", None), write("a", Some("3"))],
    };
    let second = store.commit(&two).unwrap();
    assert!(second > first);
    // Nothing of a refused transaction is written.
    assert!(matches!(store.commit(&two), Err(StoreError::Conflict)));
    let only_compares = |revision| Transaction {
        compare: vec![("a".into(), Some(revision))],
        write: vec![],
    };
    assert_eq!(store.commit(&only_compares(second)).unwrap(), second);
    let outdated = store.commit(&only_compares(first));
    assert!(matches!(outdated, Err(StoreError::Conflict)));
    let entries = store.load().unwrap();
    let entry = |key: &str, value: &str, revision| Entry {
        key: key.into(),
        value: value.into(),
        revision,
    };
    assert_eq!(entries, [entry("a", "3", second)]);
    let change = |revision, key: &str| Change {
        revision,
        key: key.into(),
    };
    let later = [change(second, "b"), change(second, "a")];
    assert_eq!(store.changes(first).unwrap(), later);
    assert_eq!(store.changes(0).unwrap().len(), 4);
    assert_eq!(store.changes(second).unwrap(), []);
}

/// Checks that a store forgets changes after a number of transactions.
pub fn forgets_old_changes(store: &mut dyn Store, commits: usize) {
    for _ in 0..commits {
        let transaction = Transaction {
            compare: vec![],
            write: vec![write("c", Some("x"))],
        };
        store.commit(&transaction).unwrap();
    }
    assert!(matches!(store.changes(1), Err(StoreError::Compacted(1))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    #[test]
    fn the_simulated_store() {
        let mut store = SimulatedStore::new();
        obeys_the_rules(&mut store);
        forgets_old_changes(&mut store, limits::CHANGES_KEPT + 2);
        let all = store.load().unwrap();
        let write = Transaction {
            compare: vec![],
            write: vec![write("d", Some("4"))],
        };
        store.fail(Fault::Full);
        assert!(store.commit(&write).is_err());
        assert_eq!(store.load().unwrap(), all);
        store.fail(Fault::LostAnswer);
        assert!(store.commit(&write).is_err());
        assert_eq!(store.load().unwrap().len(), all.len() + 1);
    }

    #[test]
    fn the_file_store() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let mut store = FileStore::make(&path).unwrap();
        obeys_the_rules(&mut store);
        assert!(matches!(FileStore::open(&path), Err(StoreError::InUse)));
        let all = store.load().unwrap();
        drop(store);
        let mut store = FileStore::open(&path).unwrap();
        assert_eq!(store.load().unwrap(), all);
        assert_eq!(store.changes(1).unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_is_cut_or_lost_or_no_store_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let is_missing = |path| matches!(FileStore::open(path), Err(StoreError::Missing));
        assert!(is_missing(&path) && !path.exists());
        drop(FileStore::make(&path).unwrap());
        assert!(is_missing(&path));
        let mut store = FileStore::make(&path).unwrap();
        let write = vec![("a".into(), Some(vec![1; 100]))];
        let compare = vec![];
        store.commit(&Transaction { compare, write }).unwrap();
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        for text in [&b"no store"[..], &whole[..whole.len() / 2], &whole[..100]] {
            std::fs::write(&path, text).unwrap();
            let opened = FileStore::open(&path);
            let error = opened.err().expect("it was opened");
            assert!(matches!(error, StoreError::Damaged(_)), "{error}");
        }
        std::fs::write(&path, b"").unwrap();
        assert!(is_missing(&path));
        for at in [0, 9, 12, 20, 70, 100, 200, whole.len() / 2] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            std::fs::write(&path, bytes).unwrap();
            // Some bytes are nobody's, or their damage is mended.
            if let Err(error) = FileStore::open(&path) {
                assert!(!matches!(error, StoreError::Io { .. }), "{at}: {error}");
            }
        }
    }
}
