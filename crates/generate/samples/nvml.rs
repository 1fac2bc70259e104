// A sample of generated code; `make samples` writes it.

/// # Safety
/// Pointers are null, or valid as NVML's reference asks of a caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: u32,
) -> nvmlReturn_t {
    // SAFETY: the arguments are as NVML's reference asks; the function asks no more.
    guard::enter(
        0,
        || unsafe {
            calls::nvmlDeviceGetName(
                Argument::from_c(device),
                Argument::from_c(name),
                Argument::from_c(length),
            )
        },
    )
}
