//! The store of one manager: a file (redb).

use std::{cell::Cell, io, panic, path::Path, sync::Once};

use redb::{
    Database, DatabaseError, Durability, ReadableTable as _, StorageError, TableDefinition,
};

use crate::{
    limits,
    store::{Change, Entry, Revision, Store, StoreError, Transaction},
};

/// A record by its key: its revision, then its contents.
const RECORDS: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("records");
/// The key of each write, by its revision and its place in the transaction.
const CHANGES: TableDefinition<'_, (u64, u32), &str> = TableDefinition::new("changes");
/// The last revision, under the key 0.
const LAST: TableDefinition<'_, u64, u64> = TableDefinition::new("last");

/// Reason that is said of a file whose end is missing.
const CUT: &str = "it is cut, or its head is wrong";

thread_local! {
    /// Whether a panic of this thread is caught and said as an error.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Records in a file that this process alone has open.
pub struct FileStore {
    database: Database,
}

impl FileStore {
    /// Makes the file, or opens the one that is there.
    pub fn make(path: &Path) -> Result<FileStore, StoreError> {
        let opened = quietly(|| Database::create(path));
        let opened = opened.map_err(|()| StoreError::Damaged(CUT.into()))?;
        let database = opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse,
            DatabaseError::Storage(error) => of_storage("opening", error),
            DatabaseError::UpgradeRequired(theirs) => StoreError::Future {
                ours: 2,
                theirs: theirs.into(),
            },
            other => StoreError::Damaged(other.to_string()),
        })?;
        let store = FileStore { database };
        let prepared = quietly(|| store.make_tables());
        match prepared.unwrap_or_else(|()| Err(StoreError::Damaged(CUT.into()))) {
            Ok(()) => Ok(store),
            Err(error) => Err(store.given_up(error)),
        }
    }

    /// Opens a file that has records: one that is missing or empty has been lost.
    pub fn open(path: &Path) -> Result<FileStore, StoreError> {
        let bytes = match path.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(of_storage("opening", StorageError::Io(error))),
        };
        if bytes == 0 {
            return Err(StoreError::Missing);
        }
        let mut store = FileStore::make(path)?;
        match store.load() {
            Ok(records) if records.is_empty() => Err(StoreError::Missing),
            Ok(_) => Ok(store),
            Err(error) => Err(store.given_up(error)),
        }
    }

    /// Closes a damaged file, at which redb may panic again.
    fn given_up(self, error: StoreError) -> StoreError {
        let _ = quietly(|| drop(self));
        error
    }

    /// Makes the tables, which readers need.
    fn make_tables(&self) -> Result<(), StoreError> {
        let write = self.database.begin_write().map_err(failed("opening"))?;
        write.open_table(RECORDS).map_err(failed("opening"))?;
        write.open_table(CHANGES).map_err(failed("opening"))?;
        write.open_table(LAST).map_err(failed("opening"))?;
        write.commit().map_err(failed("opening"))
    }

    fn read_all(&self) -> Result<Vec<Entry>, StoreError> {
        let reading = |error: StorageError| failed("reading")(error);
        let read = self.database.begin_read().map_err(failed("reading"))?;
        let table = read.open_table(RECORDS).map_err(failed("reading"))?;
        let mut entries = Vec::new();
        for record in table.iter().map_err(reading)? {
            let (key, value) = record.map_err(reading)?;
            let (revision, bytes) = value.value();
            entries.push(Entry {
                key: key.value().into(),
                value: bytes.into(),
                revision,
            });
        }
        Ok(entries)
    }

    /// Does a transaction that writes nothing. Returns the last revision.
    fn compare(&self, transaction: &Transaction) -> Result<Revision, StoreError> {
        let reading = |error: StorageError| failed("reading")(error);
        let read = self.database.begin_read().map_err(failed("reading"))?;
        let records = read.open_table(RECORDS).map_err(failed("reading"))?;
        for (key, expected) in &transaction.compare {
            let found = records.get(key.as_str()).map_err(reading)?;
            if found.map(|record| record.value().0) != *expected {
                return Err(StoreError::Conflict);
            }
        }
        let last = read.open_table(LAST).map_err(failed("reading"))?;
        let last = last.get(0).map_err(reading)?;
        Ok(last.map_or(0, |last| last.value()))
    }
}

impl Store for FileStore {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        let read = quietly(|| self.read_all());
        read.map_err(|()| StoreError::Damaged("its pages contradict each other".into()))?
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Revision, StoreError> {
        if transaction.write.is_empty() {
            return self.compare(transaction);
        }
        let mut write = self.database.begin_write().map_err(failed("writing"))?;
        write.set_durability(Durability::Immediate);
        // After a crash the file opens at once, without a scan of the whole.
        write.set_quick_repair(true);
        let revision = match apply(&write, transaction) {
            Ok(revision) => revision,
            Err(error) => {
                write.abort().map_err(failed("writing"))?;
                return Err(error);
            }
        };
        write.commit().map_err(failed("writing"))?;
        Ok(revision)
    }

    fn changes(&mut self, after: Revision) -> Result<Vec<Change>, StoreError> {
        let reading = |error: StorageError| failed("reading")(error);
        let read = self.database.begin_read().map_err(failed("reading"))?;
        let table = read.open_table(CHANGES).map_err(failed("reading"))?;
        let first = table.first().map_err(reading)?;
        if first.is_some_and(|(key, _)| key.value().0 > after + 1) {
            return Err(StoreError::Compacted(after));
        }
        let mut changes = Vec::new();
        for change in table.range((after + 1, 0)..).map_err(reading)? {
            let (at, key) = change.map_err(reading)?;
            changes.push(Change {
                revision: at.value().0,
                key: key.value().into(),
            });
        }
        Ok(changes)
    }
}

fn apply(
    write: &redb::WriteTransaction,
    transaction: &Transaction,
) -> Result<Revision, StoreError> {
    let writing = |error: StorageError| failed("writing")(error);
    let mut records = write.open_table(RECORDS).map_err(failed("writing"))?;
    for (key, expected) in &transaction.compare {
        let found = records.get(key.as_str()).map_err(writing)?;
        if found.map(|record| record.value().0) != *expected {
            return Err(StoreError::Conflict);
        }
    }
    let mut last = write.open_table(LAST).map_err(failed("writing"))?;
    let revision = last.get(0).map_err(writing)?.map_or(0, |last| last.value()) + 1;
    last.insert(0, revision).map_err(writing)?;
    let mut changes = write.open_table(CHANGES).map_err(failed("writing"))?;
    for ((key, value), place) in transaction.write.iter().zip(0..) {
        match value {
            Some(value) => drop(
                records
                    .insert(key.as_str(), (revision, value.as_slice()))
                    .map_err(writing)?,
            ),
            None => drop(records.remove(key.as_str()).map_err(writing)?),
        }
        changes
            .insert((revision, place), key.as_str())
            .map_err(writing)?;
    }
    let kept = revision.saturating_sub(limits::CHANGES_KEPT as u64);
    loop {
        let first = changes.first().map_err(writing)?;
        let Some(at) = first.map(|(at, _)| at.value()).filter(|at| at.0 <= kept) else {
            break;
        };
        changes.remove(at).map_err(writing)?;
    }
    Ok(revision)
}

/// Does what redb may panic at if the file is damaged, and prints nothing of that.
fn quietly<T>(act: impl FnOnce() -> T) -> Result<T, ()> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = panic::catch_unwind(panic::AssertUnwindSafe(act));
    IS_QUIET.set(false);
    done.map_err(drop)
}

fn of_storage(what: &'static str, error: StorageError) -> StoreError {
    match error {
        StorageError::Io(source) if is_of_cut(&source) => StoreError::Damaged(CUT.into()),
        StorageError::Io(source) => StoreError::Io { what, source },
        StorageError::Corrupted(text) => StoreError::Damaged(text),
        other => StoreError::Io {
            what,
            source: io::Error::other(other.to_string()),
        },
    }
}

fn failed<E: Into<redb::Error>>(what: &'static str) -> impl FnOnce(E) -> StoreError {
    move |error| match error.into() {
        redb::Error::Io(source) if is_of_cut(&source) => StoreError::Damaged(CUT.into()),
        redb::Error::Io(source) => StoreError::Io { what, source },
        redb::Error::Corrupted(text) => StoreError::Damaged(text),
        other => StoreError::Io {
            what,
            source: io::Error::other(other.to_string()),
        },
    }
}

/// Returns whether the file is shorter than it says, or no database.
fn is_of_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData
    )
}
