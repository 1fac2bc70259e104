//! Separate processes for the use of a driver, which may crash or hang, and the messages on their
//! standard output.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MESSAGE_BYTES_MAX: u32 = 1 << 24;

/// Starts this program with these arguments. The channel closes with the process.
pub fn start<T: DeserializeOwned + Send + 'static>(
    arguments: &[String],
) -> Result<(Child, mpsc::Receiver<T>)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting a worker")?;
    let mut pipe = child.stdout.take().context("no pipe")?;
    let (sender, said) = mpsc::channel();
    thread::spawn(move || {
        while let Ok(message) = hear(&mut pipe) {
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    Ok((child, said))
}

/// Reads a message, which its length precedes.
fn hear<T: DeserializeOwned>(pipe: &mut ChildStdout) -> Result<T> {
    let mut length = [0; 4];
    pipe.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        bail!("a message of {length} bytes");
    }
    let mut bytes = vec![0; length as usize];
    pipe.read_exact(&mut bytes)?;
    Ok(postcard::from_bytes(&bytes)?)
}

/// Sends a message to the process that started this one.
pub fn say(message: &impl Serialize) -> Result<()> {
    let bytes = postcard::to_stdvec(message)?;
    let mut out = io::stdout().lock();
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}
