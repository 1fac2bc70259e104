//! Names of special registers (PTX ISA chapter 10).

use crate::code::Special;

/// Parses the name of a special register, such as `%tid.x` (PTX ISA chapter 10).
pub(super) fn special(name: &str) -> Option<Special> {
    if let Some((base, axis)) = name.rsplit_once('.') {
        let axis = ["x", "y", "z", "w"].iter().position(|&n| n == axis)?;
        return Some(special_vector(base)?[axis]);
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NwarpId,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NsmId,
        "%gridid" => Special::GridId,
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHi,
        "%clock64" => Special::Clock64,
        "%globaltimer" => Special::GlobalTimer,
        "%globaltimer_lo" => Special::GlobalTimerLo,
        "%globaltimer_hi" => Special::GlobalTimerHi,
        "%lanemask_eq" => Special::LanemaskEq,
        "%lanemask_lt" => Special::LanemaskLt,
        "%lanemask_le" => Special::LanemaskLe,
        "%lanemask_gt" => Special::LanemaskGt,
        "%lanemask_ge" => Special::LanemaskGe,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        // No shared memory is reserved for the system, and nothing is counted.
        "%reserved_smem_offset_begin"
        | "%reserved_smem_offset_end"
        | "%reserved_smem_offset_cap"
        | "%reserved_smem_offset_0"
        | "%reserved_smem_offset_1" => Special::Zero,
        "%current_graph_exec" => Special::CurrentGraph,
        _ if performance_monitor(name) => {
            if name.ends_with("_64") {
                Special::Zero64
            } else {
                Special::Zero
            }
        }
        _ => {
            let index: u8 = name.strip_prefix("%envreg")?.parse().ok()?;
            return (index < 32).then_some(Special::Envreg(index));
        }
    })
}

/// Returns the elements of a special register that is a vector, such as `%tid`.
pub(super) fn special_vector(name: &str) -> Option<[Special; 4]> {
    let of_axis: fn(u8) -> Special = match name {
        "%tid" => Special::Tid,
        "%ntid" => Special::Ntid,
        "%ctaid" => Special::Ctaid,
        "%nctaid" => Special::Nctaid,
        _ => return None,
    };
    Some([of_axis(0), of_axis(1), of_axis(2), Special::Zero])
}

/// Whether the name is one of `%pm0` to `%pm7`, with or without `_64`.
fn performance_monitor(name: &str) -> bool {
    let digits = name.strip_prefix("%pm").unwrap_or_default();
    let digit = digits.strip_suffix("_64").unwrap_or(digits);
    matches!(digit.as_bytes(), [b'0'..=b'7'])
}

/// Special registers of newer GPUs, which have clusters.
pub(super) const SPECIAL_UNSUPPORTED: [&str; 5] = [
    "%cluster",
    "%ncluster",
    "%is_explicit_cluster",
    "%nctarank",
    "%aggr_smem_size",
];
