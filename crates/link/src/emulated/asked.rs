//! What a program is asked to emulate.

use std::env::VarError;

use outboard_wire::{
    handshake::Emulation,
    network::{Network, NetworkError},
};

use super::{Clock, ClockError};

/// Names the network; what `outboard run --emulate` sets.
pub const VARIABLE: &str = "OUTBOARD_EMULATE";

/// Why what is asked for cannot be.
#[derive(Debug, thiserror::Error)]
pub enum AskedError {
    #[error("{VARIABLE}: {0}")]
    Network(#[from] NetworkError),
    #[error("{VARIABLE}: {0}")]
    Variable(VarError),
    #[error(transparent)]
    Clock(#[from] ClockError),
}

/// What this process's environment asks for; nothing where it says nothing.
pub fn asked() -> Result<Option<Emulation>, AskedError> {
    match std::env::var(VARIABLE) {
        // As shells unset it for one command.
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(emulation(text.parse()?)?)),
        Err(VarError::NotPresent) => Ok(None),
        Err(error) => Err(AskedError::Variable(error)),
    }
}

/// What a client's hello says so that this network is emulated.
pub fn emulation(network: Network) -> Result<Emulation, ClockError> {
    Ok(Emulation {
        network,
        clock: Clock::told()?,
    })
}
