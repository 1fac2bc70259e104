// A sample of generated code; `make samples` writes it.

/// # Safety
/// Pointers are null, or valid as NVML's reference asks of a caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: u32,
) -> nvmlReturn_t {
    // SAFETY: the caller's promise is passed on as it is.
    guard::enter(0, || unsafe { calls::nvmlDeviceGetName(device, name, length) })
}
