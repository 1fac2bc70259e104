//! Figures of the session for `OUTBOARD_STATS`, besides the counts of calls.

use super::driver;

/// Returns the figures as fields of a JSON object, each after a comma; `""` without a session.
pub(crate) fn figures() -> String {
    let data_connections =
        driver().map_or((0, 0, 0), |driver| driver.session.data_connection_figures());
    let data_connections = match data_connections {
        (0, ..) => String::new(),
        (count, sent, received) => format!(
            ",\n  \"data_connections\": {{\"count\": {count}, \"sent_bytes\": {sent}, \"received_bytes\": {received}}}"
        ),
    };
    let rdma = driver()
        .ok()
        .and_then(|driver| driver.session.rdma_figures());
    let rdma = rdma.map_or(String::new(), |figures| {
        let posted = figures.posted;
        let named = [
            ("requests", posted.requests),
            ("doorbells", posted.doorbells),
            ("inline", posted.inline),
            ("wakes", posted.wakes),
            ("copied_bytes", posted.copied_bytes),
            ("direct_bytes", posted.direct_bytes),
            ("placed_bytes", posted.placed_bytes),
            ("written_bytes", figures.written_bytes),
            ("to_gpu_bytes", figures.to_gpu_bytes),
            ("from_gpu_bytes", figures.from_gpu_bytes),
            ("registrations", figures.registrations),
            ("registered_bytes", figures.registered_bytes),
        ];
        let fields = named.map(|(name, value)| format!("\"{name}\": {value}"));
        format!(",\n  \"rdma\": {{{}}}", fields.join(", "))
    });
    let mirrors = driver().ok().and_then(|driver| driver.mirrors.figures());
    let mirrors = mirrors.map_or(String::new(), |named| {
        let fields = named.map(|(name, value)| format!("\"{name}\": {value}"));
        format!(",\n  \"mirrors\": {{{}}}", fields.join(", "))
    });
    format!("{data_connections}{rdma}{mirrors}")
}
