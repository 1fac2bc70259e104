//! The ledger: memory that the sessions of one server have taken, in memory that its workers share.
//!
//! ```text
//!              row 0      row 1      row 2     ...      a row for each session
//!   tenant       1          2          1
//!   host       12 MiB      3 MiB     40 MiB             this machine's own memory
//!   device 0    2 GiB        0       512 MiB            memory of each device
//! ```
//!
//! A worker writes its own row alone. It takes memory if with it the rows of its tenant are within
//! the tenant's share, and all rows within the server's. The supervisor gives rows to sessions, and
//! clears them when a worker has ended: what a killed worker had taken is forgotten with it.
//!
//! No worker waits for another. Two that take the last of a share at one moment may both find it
//! gone: they take it back, and try again a few times.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Devices that a ledger has columns for.
pub const DEVICES_MAX: usize = 64;
/// Tries to take memory that a neighbour takes at the same moment.
const TRIES_MAX: u32 = 64;
const CELL_BYTES: usize = size_of::<AtomicU64>();
/// Numbers of a session: its tenant, its host memory, its memory of each device.
const COLUMNS: usize = 2 + DEVICES_MAX;
const TENANT: usize = 0;

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// This machine's own.
    Host,
    /// That of a device, by its number.
    Device(usize),
}

/// The rows of all sessions of a server.
#[derive(Debug)]
pub struct Ledger {
    cells: NonNull<AtomicU64>,
    rows: usize,
}

// SAFETY: the cells are atomic numbers, mapped until the ledger is dropped.
unsafe impl Send for Ledger {}
// SAFETY: the cells are atomic numbers, which any thread may use.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// Makes a ledger of this number of rows, and the descriptor by which other processes open it.
    pub fn create(rows: usize) -> io::Result<(Ledger, OwnedFd)> {
        // SAFETY: the name is a constant that ends with a zero.
        let fd = unsafe {
            libc::memfd_create(
                c"outboard-ledger".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file = File::from(fd.try_clone()?);
        file.set_len((rows * COLUMNS * CELL_BYTES) as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a call with numbers alone.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((Ledger::open(fd.try_clone()?)?, fd))
    }

    /// Maps a ledger that another process has made.
    pub fn open(fd: OwnedFd) -> io::Result<Ledger> {
        let file = File::from(fd);
        // SAFETY: a call with numbers alone.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let rows = bytes / (COLUMNS * CELL_BYTES);
        if seals & libc::F_SEAL_SHRINK == 0 || rows == 0 {
            return Err(io::Error::other("this is no ledger of shares"));
        }
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(mapped.cast()) {
            Some(cells) if mapped != libc::MAP_FAILED => Ok(Ledger { cells, rows }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Gives a free row to a session of this tenant, whose number is not 0; `None` if all are
    /// taken.
    pub fn begin(&self, tenant: u64) -> Option<usize> {
        let row = (0..self.rows).find(|row| self.read(TENANT, *row) == 0)?;
        self.cell(TENANT, row)?.store(tenant, Ordering::Relaxed);
        Some(row)
    }

    /// Clears a row. The process that wrote it has ended.
    pub fn end(&self, row: usize) {
        for column in (0..COLUMNS).rev() {
            if let Some(cell) = self.cell(column, row) {
                cell.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns what a row has taken.
    pub fn taken(&self, row: usize, resource: Resource) -> u64 {
        column(resource).map_or(0, |column| self.read(column, row))
    }

    /// Returns the sum over all rows, or over those of one tenant.
    fn sum(&self, column: usize, of: Option<u64>) -> u64 {
        let rows = (0..self.rows).filter(|row| match of {
            Some(tenant) => self.read(TENANT, *row) == tenant,
            None => true,
        });
        rows.fold(0, |sum, row| sum.saturating_add(self.read(column, row)))
    }

    fn read(&self, column: usize, row: usize) -> u64 {
        self.cell(column, row)
            .map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    fn cell(&self, column: usize, row: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping, which is aligned, lasts as long as the ledger and cannot
        // shrink.
        (column < COLUMNS && row < self.rows)
            .then(|| unsafe { self.cells.add(column * self.rows + row).as_ref() })
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let bytes = self.rows * COLUMNS * CELL_BYTES;
        // SAFETY: the mapping made by `open`, which nobody uses any more.
        unsafe { libc::munmap(self.cells.as_ptr().cast(), bytes) };
    }
}

fn column(resource: Resource) -> Option<usize> {
    match resource {
        Resource::Host => Some(1),
        Resource::Device(device) if device < DEVICES_MAX => Some(2 + device),
        Resource::Device(_) => None,
    }
}

/// Memory that sessions may take together; `None` is without bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub host_bytes: Option<u64>,
    /// On each device.
    pub device_bytes: Option<u64>,
}

impl Share {
    fn of(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Host => self.host_bytes,
            Resource::Device(_) => self.device_bytes,
        }
    }
}

/// A share that does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Short {
    #[error(
        "all programs of this one's tenant may use {} MiB together (outboard serve --share)",
        .0 >> 20
    )]
    Tenant(u64),
    #[error("all programs of the server may use {} MiB together (outboard serve --share)", .0 >> 20)]
    Server(u64),
}

/// The row of one session, and the shares that it takes from.
#[derive(Debug, Clone)]
pub struct Account {
    ledger: Arc<Ledger>,
    row: usize,
    tenant: u64,
    of_tenant: Share,
    of_server: Share,
}

impl Account {
    /// Returns the account of a row that the supervisor has given to this tenant.
    pub fn new(ledger: Ledger, row: usize, of_tenant: Share, of_server: Share) -> Account {
        Account {
            tenant: ledger.read(TENANT, row),
            ledger: Arc::new(ledger),
            row,
            of_tenant,
            of_server,
        }
    }

    /// Takes memory, or fails if a share has no room for it. Nothing is allocated.
    pub fn take(&self, resource: Resource, bytes: u64) -> Result<(), Short> {
        let Some((column, own)) = self.own(resource) else {
            return Ok(());
        };
        let mut short = None;
        for attempt in 0..TRIES_MAX {
            // A request that fits into no share is seen by no other worker.
            self.fits(resource, column, bytes)?;
            own.fetch_add(bytes, Ordering::SeqCst);
            match self.fits(resource, column, 0) {
                Ok(()) => return Ok(()),
                Err(why) => {
                    own.fetch_sub(bytes, Ordering::SeqCst);
                    short = Some(why);
                }
            }
            // Neighbours try again at other moments.
            for _ in 0..(self.row as u32 % 7 + 1) * (attempt + 1) {
                std::hint::spin_loop();
            }
        }
        short.map_or(Ok(()), Err)
    }

    /// Takes memory that is there already, whether there is room for it or not.
    pub fn force(&self, resource: Resource, bytes: u64) {
        if let Some((_, own)) = self.own(resource) {
            own.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Gives back memory that was taken.
    pub fn give(&self, resource: Resource, bytes: u64) {
        if let Some((_, own)) = self.own(resource) {
            own.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    /// Returns the least share of this memory, if there is one.
    pub fn share(&self, resource: Resource) -> Option<u64> {
        let shares = [self.of_tenant.of(resource), self.of_server.of(resource)];
        shares.into_iter().flatten().min()
    }

    /// Returns whether more than three quarters of a share are taken.
    pub(crate) fn is_tight(&self, resource: Resource) -> bool {
        let Some((column, _)) = self.own(resource) else {
            return false;
        };
        let is_beyond = |share: Option<u64>, of| {
            share.is_some_and(|share| self.ledger.sum(column, of) > share / 4 * 3)
        };
        is_beyond(self.of_tenant.of(resource), Some(self.tenant))
            || is_beyond(self.of_server.of(resource), None)
    }

    fn own(&self, resource: Resource) -> Option<(usize, &AtomicU64)> {
        let column = column(resource)?;
        Some((column, self.ledger.cell(column, self.row)?))
    }

    fn fits(&self, resource: Resource, column: usize, bytes: u64) -> Result<(), Short> {
        let has_room = |share: u64, of| self.ledger.sum(column, of).saturating_add(bytes) <= share;
        match (self.of_tenant.of(resource), self.of_server.of(resource)) {
            (Some(share), _) if !has_room(share, Some(self.tenant)) => Err(Short::Tenant(share)),
            (_, Some(share)) if !has_room(share, None) => Err(Short::Server(share)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn share(bytes: u64) -> Share {
        Share {
            host_bytes: Some(bytes),
            device_bytes: Some(bytes / 2),
        }
    }

    /// Opens the ledger once more, as another worker does.
    fn account(fd: &OwnedFd, row: usize, tenant: Share, server: Share) -> Account {
        let ledger = Ledger::open(fd.try_clone().unwrap()).unwrap();
        Account::new(ledger, row, tenant, server)
    }

    #[test]
    fn a_tenants_sessions_share_and_others_are_not_concerned() {
        let (ledger, fd) = Ledger::create(4).unwrap();
        let rows: Vec<_> = [7, 7, 9].map(|tenant| ledger.begin(tenant).unwrap()).into();
        let of = |row: usize| account(&fd, rows[row], share(100), Share::default());
        let (one, two, other) = (of(0), of(1), of(2));
        one.take(Resource::Host, 60).unwrap();
        assert_eq!(two.take(Resource::Host, 41), Err(Short::Tenant(100)));
        two.take(Resource::Host, 40).unwrap();
        assert_eq!(one.take(Resource::Host, 1), Err(Short::Tenant(100)));
        other.take(Resource::Host, 100).unwrap();
        two.take(Resource::Device(3), 50).unwrap();
        one.take(Resource::Device(4), 50).unwrap();
        assert_eq!(one.take(Resource::Device(3), 1), Err(Short::Tenant(50)));
        assert_eq!(one.take(Resource::Device(DEVICES_MAX), 1), Ok(()));
        // A worker that is killed gives everything back.
        ledger.end(rows[1]);
        one.take(Resource::Host, 40).unwrap();
        one.take(Resource::Device(3), 50).unwrap();
        assert_eq!(ledger.begin(5), Some(rows[1]));
        assert_eq!(ledger.taken(rows[1], Resource::Host), 0);
        assert!(ledger.begin(5).is_some() && ledger.begin(5).is_none());
    }

    #[test]
    fn the_servers_share_is_the_sum_over_tenants() {
        let (ledger, fd) = Ledger::create(2).unwrap();
        let rows = [1, 2].map(|tenant| ledger.begin(tenant).unwrap());
        let [one, other] = rows.map(|row| account(&fd, row, share(80), share(100)));
        one.take(Resource::Host, 80).unwrap();
        assert_eq!(other.take(Resource::Host, 21), Err(Short::Server(100)));
        other.take(Resource::Host, 20).unwrap();
        assert!(one.is_tight(Resource::Host) && !one.is_tight(Resource::Device(0)));
        one.give(Resource::Host, 80);
        other.take(Resource::Host, 60).unwrap();
        assert_eq!(other.take(Resource::Host, 1), Err(Short::Tenant(80)));
    }

    #[test]
    fn many_workers_never_pass_a_share() {
        const WORKERS: usize = 4;
        const SHARE: u64 = 64;
        let (ledger, fd) = Ledger::create(WORKERS).unwrap();
        let rows: Vec<_> = (0..WORKERS).map(|_| ledger.begin(1).unwrap()).collect();
        // Counted after it is taken, and no more before it is given back.
        let all = AtomicU64::new(0);
        thread::scope(|scope| {
            for row in rows {
                let (fd, all, ledger) = (&fd, &all, &ledger);
                scope.spawn(move || {
                    let account = account(fd, row, share(SHARE), Share::default());
                    let mut had = 0;
                    for round in 0..20_000_u64 {
                        let bytes = 1 + (round * 7 + row as u64) % 9;
                        if had < 40 && account.take(Resource::Host, bytes).is_ok() {
                            had += bytes;
                            let sum = all.fetch_add(bytes, Ordering::SeqCst) + bytes;
                            assert!(sum <= SHARE, "{sum}");
                        } else {
                            all.fetch_sub(had, Ordering::SeqCst);
                            account.give(Resource::Host, std::mem::take(&mut had));
                        }
                    }
                    all.fetch_sub(had, Ordering::SeqCst);
                    account.give(Resource::Host, had);
                    assert_eq!(ledger.taken(row, Resource::Host), 0);
                });
            }
        });
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(Ledger::open(file.into()).is_err());
    }
}
