//! Figures of the sessions for `OUTBOARD_STATS`, besides the counts of calls.

use super::drivers;
use crate::observe::crossings;

/// Returns the figures as fields of a JSON object, each after a comma; `""` without a session.
pub(crate) fn figures() -> String {
    let of_all = drivers()
        .iter()
        .map(|driver| driver.session.data_connection_figures());
    let data_connections = of_all.fold((0, 0, 0), |sum, one| {
        (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2)
    });
    let data_connections = match data_connections {
        (0, ..) => String::new(),
        (count, sent, received) => format!(
            ",\n  \"data_connections\": {{\"count\": {count}, \"sent_bytes\": {sent}, \"received_bytes\": {received}}}"
        ),
    };
    // Of several servers over rdma, the first one's.
    let rdma = drivers()
        .iter()
        .find_map(|driver| driver.session.rdma_figures());
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
    let mirrors = drivers()
        .iter()
        .filter_map(|driver| driver.mirrors.figures())
        .reduce(|sum, one| {
            let pairs = sum.into_iter().zip(one);
            let mut sums =
                pairs.map(|((name, a), (_, b))| (name, if name == "tracked" { a } else { a + b }));
            sum.map(|known| sums.next().unwrap_or(known))
        });
    let mirrors = mirrors.map_or(String::new(), |named| {
        let fields = named.map(|(name, value)| format!("\"{name}\": {value}"));
        format!(",\n  \"mirrors\": {{{}}}", fields.join(", "))
    });
    let crossings = crossings::to_json();
    format!("{data_connections}{rdma}{mirrors}{crossings}")
}
