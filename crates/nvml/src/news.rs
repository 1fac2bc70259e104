//! The file with the news of the program's lease, and waiting for a change of it.

use std::{
    env,
    ffi::OsStr,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use outboard_wire::lease::{self, LeaseEvent, NEWS_BYTES_MAX, NEWS_VARIABLE};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
};

/// Returns the file's path, if the program has a lease with a holder.
pub(crate) fn file() -> Option<PathBuf> {
    let path = env::var_os(NEWS_VARIABLE).filter(|path| !path.is_empty())?;
    Some(path.into())
}

/// Returns all events that the file has. There is none before the holder has written it, nor after
/// the program's end.
pub(crate) fn events() -> Vec<LeaseEvent> {
    let text = file().and_then(|path| outboard_files::read_text(&path, NEWS_BYTES_MAX).ok());
    text.map_or_else(Vec::new, |text| lease::events(&text).collect())
}

/// Notices that the file is replaced.
pub(crate) struct Watch {
    /// `None`: the file is looked at again and again.
    folder: Option<OwnedFd>,
}

impl Watch {
    /// Begins: what is written from now on ends a wait.
    pub(crate) fn new() -> Watch {
        let folder = file().and_then(|path| watch_folder(&path).ok());
        Watch { folder }
    }

    /// Waits until something in the file's folder is replaced, for this time at most.
    pub(crate) fn wait(&self, limit: Duration) {
        let Some(folder) = &self.folder else {
            return thread::sleep(limit);
        };
        let mut fds = [PollFd::new(folder, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        if !matches!(poll(&mut fds, limit.as_ref()), Ok(1..)) {
            return;
        }
        // What it was is of no interest: the file is read next.
        let mut room = [0; 4096];
        while matches!(rustix::io::read(folder, &mut room), Ok(1..)) {}
    }
}

fn watch_folder(path: &Path) -> io::Result<OwnedFd> {
    let folder = path.parent().filter(|folder| *folder != OsStr::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let all = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&all, folder, WatchFlags::MOVED_TO)?;
    Ok(all)
}
