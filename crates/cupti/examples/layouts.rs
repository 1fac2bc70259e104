//! Prints every field of every record type: type, field, offset, bytes. A test compares the output
//! with CUPTI's header.

use outboard_api::cupti_records::{
    Api, CudaEvent, ExternalCorrelation, Kernel, Memcpy, Memset, Overhead, Peer, Synchronization,
};

type Fields = &'static [(&'static str, usize, usize)];

fn main() {
    let records: [(&str, Fields); 9] = [
        ("CUpti_ActivityKernel10", Kernel::FIELDS),
        ("CUpti_ActivityMemcpy6", Memcpy::FIELDS),
        ("CUpti_ActivityMemset4", Memset::FIELDS),
        ("CUpti_ActivityAPI", Api::FIELDS),
        (
            "CUpti_ActivityExternalCorrelation",
            ExternalCorrelation::FIELDS,
        ),
        ("CUpti_ActivityOverhead3", Overhead::FIELDS),
        ("CUpti_ActivityMemcpyPtoP4", Peer::FIELDS),
        ("CUpti_ActivitySynchronization2", Synchronization::FIELDS),
        ("CUpti_ActivityCudaEvent2", CudaEvent::FIELDS),
    ];
    for (record, fields) in records {
        for (field, offset, bytes) in fields {
            println!("{record} {field} {offset} {bytes}");
        }
    }
}
