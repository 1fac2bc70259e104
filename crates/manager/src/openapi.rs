//! The description of the API, OpenAPI 3.1: `openapi.json`, which `describe` makes of the
//! declaration in `operations`.

use outboard_pool::api::PoolError;

/// The file, compressed by the build script.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.lz4"));

/// Returns the whole document.
pub(crate) fn document() -> Result<Vec<u8>, PoolError> {
    let plain = lz4_flex::decompress_size_prepended(PACKED);
    plain.map_err(|error| PoolError::NotNow(error.to_string()))
}
