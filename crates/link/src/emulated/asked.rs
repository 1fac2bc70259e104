//! The network that a program is asked to emulate.

use std::env::VarError;

use outboard_wire::{
    handshake::Emulation,
    network::{Network, NetworkError},
};

use super::{Clock, ClockError};

/// Names the variable that holds the network; `outboard run --emulate` sets it.
pub const VARIABLE: &str = "OUTBOARD_EMULATE";

/// Reason why the network asked for cannot be emulated.
#[derive(Debug, thiserror::Error)]
pub enum AskedError {
    #[error("{VARIABLE}: {0}")]
    Network(#[from] NetworkError),
    #[error("{VARIABLE}: {0}")]
    Variable(VarError),
    #[error(transparent)]
    Clock(#[from] ClockError),
}

/// Reads the network that this process's environment asks for; `None` if it asks for none.
pub fn asked() -> Result<Option<Emulation>, AskedError> {
    match std::env::var(VARIABLE) {
        // Shells unset a variable for one command in this way.
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(emulation(text.parse()?)?)),
        Err(VarError::NotPresent) => Ok(None),
        Err(error) => Err(AskedError::Variable(error)),
    }
}

/// Makes the part of a client's hello that asks for this network.
pub fn emulation(network: Network) -> Result<Emulation, ClockError> {
    Ok(Emulation {
        network,
        clock: Clock::told()?,
    })
}
