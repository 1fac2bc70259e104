//! Endpoints of this process.

use crate::{
    endpoint::{Endpoint, OfAdapter},
    engine::Engine,
    error::Error,
    faults::Network,
    kernel::OfKernel,
    mlx5::Mlx5,
    nvlink::Nvlink,
    provider::Provider,
    proxy::Proxy,
};

/// Opens an endpoint of this process.
pub(crate) fn here(
    provider: Provider,
    engine: Engine,
    network: Network,
) -> Result<Box<dyn Endpoint>, Error> {
    Ok(match (provider, engine) {
        (Provider::Nic, Engine::Thread) => Box::new(OfAdapter::start(network)?),
        (Provider::Nic, Engine::Gpu { blocks, warps }) => Box::new(OfKernel::new(blocks, warps)),
        (Provider::Mlx5, _) => Box::new(Mlx5::open()?),
        (Provider::Nvlink, _) => Box::new(Nvlink::default()),
        (Provider::Proxy, _) => Box::new(Proxy::open()?),
    })
}
