//! Each rule refuses a program that breaks it, and no more.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::code::{Bin32, Code, FloatFlags, Mem, MemSpace, Un32, Width};

/// A kernel with two rows of each kind, a predicate and a frame of 16 bytes.
fn program(ops: &[Op]) -> (Program, Vec<Kernel>) {
    let code = |&op| Code {
        guard: Guard::ALWAYS,
        op,
    };
    let mut code: Vec<_> = ops.iter().map(code).collect();
    code.push(Code {
        guard: Guard::ALWAYS,
        op: Op::Exit,
    });
    let function = Function {
        name: "k".into(),
        entry: Some(0),
        rows32: 2,
        rows64: 2,
        preds: 1,
        frame_bytes: 16,
        ..Function::default()
    };
    let program = Program {
        lines: (10..).take(code.len()).collect(),
        code,
        functions: vec![function],
        consts32: vec![[7; 32]],
        rows: vec![0, 1, SINK],
        ..Program::default()
    };
    (program, Vec::new())
}

fn checked(ops: &[Op]) -> Result<(), Defect> {
    let (program, kernels) = program(ops);
    verify(program, kernels).map(drop).map_err(|e| e.defect)
}

fn add(d: Row, a: Row, b: Row) -> Op {
    Op::Bin32 {
        op: Bin32::Add,
        d,
        a,
        b,
    }
}

const SHARED: Mem = Mem {
    space: MemSpace::Shared,
    base: crate::code::Base::None,
    offset: 0,
};

#[test]
fn rows_are_in_range() {
    checked(&[add(1, 0, CONST)]).unwrap();
    let row = |row, count| {
        Err(Defect::Row {
            row,
            bits: 32,
            count,
        })
    };
    assert_eq!(checked(&[add(2, 0, 0)]), row(2, 2));
    assert_eq!(checked(&[add(0, 2, 0)]), row(2, 2));
    assert_eq!(checked(&[add(0, 0, CONST | 1)]), row(CONST | 1, 1));
    assert_eq!(checked(&[add(CONST, 0, 0)]), row(CONST, 0));
    assert_eq!(checked(&[add(SINK, 0, 0)]), row(SINK, 0));
}

#[test]
fn the_width_chooses_the_file() {
    let load = |width, d| Op::Ld {
        width,
        mem: SHARED,
        d,
    };
    let (mut few, kernels) = program(&[load(Width::B64, 1)]);
    few.functions[0].rows64 = 1;
    let error = verify(few, kernels).unwrap_err();
    assert_eq!(
        error.defect,
        Defect::Row {
            row: 1,
            bits: 64,
            count: 1
        }
    );
    assert_eq!((error.instruction, error.line), (0, 10));
    checked(&[load(Width::B32, 1), load(Width::U8x64, 1)]).unwrap();
}

#[test]
fn predicates_are_in_range() {
    let guarded = |pred, negated| {
        let (mut program, kernels) = program(&[Op::Nop]);
        program.code[0].guard = Guard { pred, negated };
        verify(program, kernels).map(drop).map_err(|e| e.defect)
    };
    guarded(0, true).unwrap();
    guarded(SINK_PRED, false).unwrap();
    for (pred, negated) in [(1, false), (SINK_PRED, true)] {
        assert_eq!(
            guarded(pred, negated),
            Err(Defect::Predicate { pred, count: 1 })
        );
    }
    checked(&[Op::PredConst {
        value: true,
        d: SINK_PRED,
    }])
    .unwrap();
    let read = Op::PredOp {
        lut: 0,
        d: 0,
        a: SINK_PRED,
        b: 0,
    };
    assert!(matches!(checked(&[read]), Err(Defect::Predicate { .. })));
}

#[test]
fn control_stays_in_its_function() {
    checked(&[Op::Bra { target: 1 }]).unwrap();
    let jump = |target, end| {
        Err(Defect::Target {
            target,
            first: 0,
            end,
        })
    };
    assert_eq!(checked(&[Op::Bra { target: 2 }]), jump(2, 2));
    let (mut two, kernels) = program(&[Op::Bra { target: 1 }, Op::Exit]);
    two.functions.push(Function {
        entry: Some(1),
        ..Function::default()
    });
    let error = verify(two, kernels).unwrap_err();
    assert_eq!(Err(error.defect), jump(1, 1));
    let (mut open, kernels) = program(&[Op::Nop]);
    open.code[1].op = Op::Nop;
    assert_eq!(verify(open, kernels).unwrap_err().defect, Defect::NoEnd);
}

#[test]
fn lists_and_tables_are_in_range() {
    let load = |n, list| Op::LdVec {
        width: Width::B32,
        n,
        list,
        mem: SHARED,
    };
    checked(&[load(2, 0), load(2, 1)]).unwrap();
    let beyond = Defect::Table {
        first: 2,
        count: 2,
        len: 3,
    };
    assert_eq!(checked(&[load(2, 2)]), Err(beyond));
    assert!(matches!(checked(&[load(3, 0)]), Err(Defect::Form(_))));
    // A store may not discard what it reads.
    let store = Op::StVec {
        width: Width::B32,
        n: 2,
        list: 1,
        mem: SHARED,
    };
    assert!(matches!(
        checked(&[store]),
        Err(Defect::Row { row: SINK, .. })
    ));
    for op in [
        Op::Tensor { index: 0 },
        Op::Call { call: 0 },
        Op::Texture { index: 0 },
    ] {
        let none = Defect::Table {
            first: 0,
            count: 1,
            len: 0,
        };
        assert_eq!(checked(&[op]), Err(none));
    }
}

#[test]
fn parameters_are_inside_the_frame() {
    let call = |offset, bytes, callee| {
        let (mut program, kernels) = program(&[Op::Call { call: 0 }]);
        let params = vec![ParamSlot { offset, bytes }];
        program.calls.push(Call {
            callee,
            returns: Vec::new(),
            params,
        });
        verify(program, kernels).map(drop).map_err(|e| e.defect)
    };
    call(8, 8, Callee::Runtime(Runtime::Malloc)).unwrap();
    call(0, 16, Callee::Function(0)).unwrap();
    for (offset, bytes) in [(9, 8), (u32::MAX, 8), (0, 17)] {
        let refused = call(offset, bytes, Callee::Function(0));
        assert!(
            matches!(refused, Err(Defect::Frame { .. })),
            "{offset}+{bytes}"
        );
    }
    let few = call(0, 8, Callee::Runtime(Runtime::Vprintf));
    assert!(matches!(few, Err(Defect::Form(_))));
    assert!(matches!(
        call(0, 8, Callee::Function(1)),
        Err(Defect::Table { .. })
    ));
    assert!(matches!(
        call(0, 8, Callee::Indirect(2)),
        Err(Defect::Row { .. })
    ));
}

#[test]
fn kernel_parameters_are_read_only() {
    let mem = Mem {
        space: MemSpace::Param,
        ..SHARED
    };
    checked(&[Op::Ld {
        width: Width::B32,
        mem,
        d: 0,
    }])
    .unwrap();
    let store = Op::St {
        width: Width::B32,
        mem,
        a: 0,
    };
    assert!(matches!(checked(&[store]), Err(Defect::Form(_))));
}

#[test]
fn limits_hold() {
    let (mut program, kernels) = program(&[Op::Un32 {
        op: Un32::Mov,
        flags: FloatFlags::default(),
        d: 0,
        a: 0,
    }]);
    program.functions[0].rows32 = u32::MAX;
    let error = verify(program, kernels).unwrap_err();
    assert!(matches!(
        error.defect,
        Defect::Limit {
            what: "registers",
            ..
        }
    ));
    assert!(error.to_string().contains("PTX line 10: `k`"), "{error}");
}
