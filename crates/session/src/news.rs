//! Text that kernels have printed and words that they have changed, on their way to the client.

use outboard_device::Printed;
use outboard_wire::{limits::CHUNK_BYTES_MAX, messages::PrintNote};

use super::{End, changes::Changes, net::Net, outbox::Outbox};

/// Sends text, and empties it.
pub(super) fn send_printed(outbox: &mut Outbox, printed: &mut Printed) -> Result<(), End> {
    let Printed { stdout, stderr } = printed;
    for (fd, text) in [
        (libc::STDOUT_FILENO as u8, stdout),
        (libc::STDERR_FILENO as u8, stderr),
    ] {
        for text in text.chunks(CHUNK_BYTES_MAX) {
            outbox.note(PrintNote::NUMBER, &PrintNote { fd, text })?;
        }
        text.clear();
    }
    Ok(())
}

/// Sends the changed words that `take` hands over.
pub(super) fn send_host_pages(
    outbox: &mut Outbox,
    net: &Net,
    take: impl FnMut(&mut dyn FnMut(u64, &[u8])),
) -> Result<(), End> {
    let mut changes = Changes::new(outbox);
    net.changes(take, &mut |va, run| changes.add(va, run))
        .map_err(End::Memory)?;
    Ok(changes.finish()?)
}
