//! Prints every field of every record type: type, field, offset, bytes. A test compares the output
//! with CUPTI's header.

use outboard_cupti::records::{Api, ExternalCorrelation, Kernel, Memcpy, Memset, Overhead};

type Fields = &'static [(&'static str, usize, usize)];

fn main() {
    let records: [(&str, Fields); 6] = [
        ("CUpti_ActivityKernel10", Kernel::FIELDS),
        ("CUpti_ActivityMemcpy6", Memcpy::FIELDS),
        ("CUpti_ActivityMemset4", Memset::FIELDS),
        ("CUpti_ActivityAPI", Api::FIELDS),
        (
            "CUpti_ActivityExternalCorrelation",
            ExternalCorrelation::FIELDS,
        ),
        ("CUpti_ActivityOverhead3", Overhead::FIELDS),
    ];
    for (record, fields) in records {
        for (field, offset, bytes) in fields {
            println!("{record} {field} {offset} {bytes}");
        }
    }
}
