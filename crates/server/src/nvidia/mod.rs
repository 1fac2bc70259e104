//! The machine's own NVIDIA driver.
